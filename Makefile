# libtensor - make help lists the targets.
#
# Sources are found by folder: a new .c file in a room below is built, a new tests/test_*.c is a test
# program, a new examples/*.c an example. Nothing here installs anything but `deps` (and `demo` and `test`
# when something they need is missing; DEPS=no refuses).

CC ?= gcc
PREFIX ?= /usr/local
BUILD ?= build
VERSION := 0.1.0
SOVERSION := 0

have = $(shell printf '\#include <$(1)>\n' | $(CC) $(CPPFLAGS) -E -x c - >/dev/null 2>&1 && echo 1)
HAVE_DNNL := $(call have,oneapi/dnnl/dnnl.h)
HAVE_ZLIB := $(call have,zlib.h)
HAVE_STB := $(call have,stb/stb_image.h)
HAVE_CJSON := $(call have,cjson/cJSON.h)
HAVE_CMOCKA := $(shell printf '\#include <stdarg.h>\n\#include <stddef.h>\n\#include <setjmp.h>\n\#include <stdint.h>\n\#include <cmocka.h>\n' | $(CC) -E -x c - >/dev/null 2>&1 && echo 1)

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes \
        -Wmissing-prototypes -Wpointer-arith -Wvla
OPT ?= -O2 -g
SAN ?=
DEFS := -D_GNU_SOURCE -DTN_NO_MACROS -DTN_BUILD_CC='"$(CC)"' \
        $(if $(HAVE_DNNL),-DTN_HAVE_DNNL) $(if $(HAVE_ZLIB),-DTN_HAVE_ZLIB) \
        $(if $(HAVE_STB),-DTN_HAVE_STB) $(if $(HAVE_CJSON),-DTN_HAVE_CJSON)
BASE := -std=c11 $(OPT) $(WARN) $(SAN) -fPIC -pthread -MMD -MP
LIBCFLAGS := $(BASE) $(DEFS) -fvisibility=hidden -ffp-contract=off -Iinclude
APPCFLAGS := $(BASE) -D_GNU_SOURCE -Iinclude
TESTCFLAGS := $(BASE) $(filter-out -DTN_NO_MACROS,$(DEFS)) -ffp-contract=off -Iinclude -I.
LIBS := $(if $(HAVE_DNNL),-ldnnl) $(if $(HAVE_ZLIB),-lz) $(if $(HAVE_CJSON),-lcjson) -ldl -lm

ROOMS := src/core src/device src/device/cpu src/device/ref src/runtime autograd fuser nn
SRC := $(sort $(foreach d,$(ROOMS),$(wildcard $(d)/*.c)))
OBJ := $(SRC:%.c=$(BUILD)/obj/%.o)
EXAMPLES := $(patsubst examples/%.c,$(BUILD)/%,$(wildcard examples/*.c))
TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))
BENCHES := $(patsubst tests/bench/%.c,$(BUILD)/bench/%,$(wildcard tests/bench/*.c))
TOOLS := $(patsubst data/%.c,$(BUILD)/%,$(wildcard data/*.c))

.PHONY: all lib examples tools help deps demo test test-long asan tsan bench bench-peers gpu-check install \
        clean format doctor need
all: lib examples tools

help:
	@echo 'make            library and examples        make demo       train the CNN on the shipped digits'
	@echo 'make test       the test suite              make asan       the suite under ASan and UBSan'
	@echo 'make deps       what is needed, installed   make doctor     what was found on this machine'
	@echo 'make bench      eager ops, and the step     make install PREFIX=/usr/local'
	@echo 'make test-long  hours of random graphs      make tsan       threads under ThreadSanitizer'

lib: $(BUILD)/libtensor.a $(BUILD)/libtensor.so $(BUILD)/libtensor.pc
examples: $(EXAMPLES)
tools: $(TOOLS)

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(LIBCFLAGS) -c $< -o $@

# Text that is compiled at run time is embedded whole; assembler does not track it, so say it here.
$(BUILD)/obj/src/device/embed.o: $(wildcard src/device/prelude/*)

$(BUILD)/libtensor.a: $(OBJ)
	@rm -f $@
	$(AR) rcs $@ $(OBJ)

$(BUILD)/libtensor.so.$(VERSION): $(OBJ)
	$(CC) $(SAN) -shared -Wl,-soname,libtensor.so.$(SOVERSION) -Wl,--as-needed -o $@ $(OBJ) -pthread $(LIBS)

$(BUILD)/libtensor.so: $(BUILD)/libtensor.so.$(VERSION)
	ln -sf libtensor.so.$(VERSION) $(BUILD)/libtensor.so.$(SOVERSION)
	ln -sf libtensor.so.$(VERSION) $@

$(BUILD)/libtensor.pc: Makefile
	@mkdir -p $(@D)
	@printf 'prefix=%s\nlibdir=$${prefix}/lib\nincludedir=$${prefix}/include\n\nName: libtensor\nDescription: tensors that train, with operator fusion\nVersion: %s\nLibs: -L$${libdir} -ltensor\nLibs.private: -pthread %s\nCflags: -I$${includedir}\n' \
	  '$(PREFIX)' '$(VERSION)' '$(strip $(LIBS))' > $@

$(EXAMPLES): $(BUILD)/%: examples/%.c $(BUILD)/libtensor.a
	$(CC) $(APPCFLAGS) $< -o $@ $(BUILD)/libtensor.a -pthread $(LIBS)

$(TOOLS): $(BUILD)/%: data/%.c
	@mkdir -p $(@D)
	$(CC) $(BASE) -D_GNU_SOURCE $< -o $@ $(if $(HAVE_ZLIB),-lz) -lm

$(BUILD)/tests/%: tests/%.c $(BUILD)/libtensor.a
	@mkdir -p $(@D)
	$(CC) $(TESTCFLAGS) $< -o $@ $(BUILD)/libtensor.a -lcmocka -pthread $(LIBS)

$(BUILD)/bench/%: tests/bench/%.c $(BUILD)/libtensor.a
	@mkdir -p $(@D)
	$(CC) $(TESTCFLAGS) -O3 -march=native $< -o $@ $(BUILD)/libtensor.a -pthread $(LIBS)

clean:
	rm -rf $(BUILD)

format:
	clang-format -i $(SRC) $(wildcard include/*.h src/*/*.h src/*/*/*.h autograd/*.h fuser/*.h nn/*.h examples/*.c tests/*.[ch] tests/bench/*.[ch] data/*.c)

-include $(OBJ:.o=.d) $(wildcard $(BUILD)/*.d $(BUILD)/tests/*.d $(BUILD)/bench/*.d)
