# libtensor - `make help` lists the targets.
#
# Sources are found by folder: a new .c file in a room is built, a new tests/test_*.c or tests/test_*.sh is a
# test, a new examples/*.c an example. Everything built lands in $(BUILD); the sanitized builds have folders of
# their own, and a change of compiler or flags rebuilds what it must ($(BUILD)/flags). Nothing here installs
# software but `deps`, and `demo` and `test` through it when something they need is missing; DEPS=no refuses.
#
# Which libraries are taken is decided by what is found here. HAVE_ZLIB= (or STB, CJSON) on the command line builds
# as if one were not there. V=1 shows whole command lines.

MAKEFLAGS += --no-builtin-rules
.SUFFIXES:
.DELETE_ON_ERROR:

ifeq ($(origin CC),default)
CC := $(if $(shell command -v gcc),gcc,cc)
endif
# Those that go with the compiler, which may be one for another processor.
tool = $(or $(shell $(CC) -print-prog-name=$(1) 2>/dev/null),$(1))
ifeq ($(origin AR),default)
AR = $(call tool,ar)
endif
ifeq ($(origin LD),default)
LD = $(call tool,ld)
endif
OBJCOPY ?= $(call tool,objcopy)
BUILD ?= build
# For the plugin by which ranks work together; one of MPICH or Open MPI.
MPICC ?= mpicc
PREFIX ?= /usr/local
# A path may hold spaces, which make takes for the ends of words: in what is built with all but BUILD itself.
space := $() $()
path = $(subst ?,$(space),$(abspath $(subst $(space),?,$(1))))
$(if $(word 2,$(BUILD)),$(error BUILD is a folder without a space in its name, not "$(BUILD)": make cannot name targets in one. The tree itself may stand anywhere))
LIBDIR ?= $(call path,$(PREFIX))/lib
INCLUDEDIR ?= $(call path,$(PREFIX))/include
DOCDIR ?= $(call path,$(PREFIX))/share/doc/libtensor
PYDIR ?= $(call path,$(PREFIX))/share/libtensor
BINDIR ?= $(call path,$(PREFIX))/bin
MANDIR ?= $(call path,$(PREFIX))/share/man
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
Q := $(if $(V),,@)
say = @printf '  %-6s %s\n' $(1) $(2)

version_part = $(shell sed -n 's/^.define TN_VERSION_$(1) \([0-9]*\)$$/\1/p' include/tensor.h)
VERSION := $(call version_part,MAJOR).$(call version_part,MINOR).$(call version_part,PATCH)
SOVERSION := $(call version_part,MAJOR)

# ---- what is on this machine ----------------------------------------------------------------------------

# A library is there where its header is found and the linker finds it, too: one that is there for another processor
# shows its header to every compiler. make 4.3 and later want the sign bare inside a function, earlier ones escaped: a
# variable suits all.
INCLUDE := \#include
FOUND := $(shell try() { echo "$$2" | tr ';' '\n' | $(CC) $(CPPFLAGS) $(CFLAGS) $$4 -E -x c - >/dev/null 2>&1 && { [ -z "$$3" ] || \
        echo 'int main(void) { return 0; }' | $(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -x c - -o /dev/null $$3 >/dev/null 2>&1; } && \
        echo "$$1"; }; \
    echo 'pointer __SIZEOF_POINTER__' | $(CC) $(CPPFLAGS) $(CFLAGS) -E -x c - 2>/dev/null | grep -q 'pointer 4' && echo narrow; \
    try native '' '' -march=native; { echo '$(INCLUDE) <mpi.h>'; echo 'int main(void) { return MPI_VERSION; }'; } | \
        OMPI_CC='$(CC)' MPICH_CC='$(CC)' $(MPICC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -x c - -o /dev/null >/dev/null 2>&1 && echo mpicc; \
    try cc '$(INCLUDE) <stdio.h>'; try zlib '$(INCLUDE) <zlib.h>' -lz; \
    try stb '$(INCLUDE) <stb/stb_image.h>'; try cjson '$(INCLUDE) <cjson/cJSON.h>' -lcjson; try cmocka \
    '$(INCLUDE) <stdarg.h>;$(INCLUDE) <stddef.h>;$(INCLUDE) <setjmp.h>;$(INCLUDE) <stdint.h>;$(INCLUDE) <cmocka.h>' -lcmocka)
$(if $(filter narrow,$(FOUND)),$(error $(CC) $(CPPFLAGS) $(CFLAGS) compiles for a processor of 32 bits, and libtensor is for 64: \
    sizes and addresses are numbers of 64 bits in its kernels. Name a compiler for 64 bits by CC=, and leave out -m32 or -mx32))
CC_VERSION := $(shell $(CC) --version 2>/dev/null | head -n 1)
HAVE_CC := $(filter cc,$(FOUND))
HAVE_MPI := $(filter mpicc,$(FOUND))
HAVE_ZLIB := $(filter zlib,$(FOUND))
HAVE_STB := $(filter stb,$(FOUND))
HAVE_CJSON := $(filter cjson,$(FOUND))
HAVE_CMOCKA := $(filter cmocka,$(FOUND))
# Only a test wants the CUDA toolkit's headers, to compare its own declarations with; the library opens CUDA at run time.
CUDA_INCLUDE := $(firstword $(foreach d,$(CUDA_HOME) $(CUDA_PATH) /usr/local/cuda,\
    $(if $(wildcard $(d)/include/cublasLt.h),$(if $(wildcard $(d)/include/nvrtc.h),$(patsubst %/cuda.h,%,$(wildcard $(d)/include/cuda.h))))))

# Debian's names. pkg-config and g++ serve the tests of the installed library; those are skipped without.
PACKAGES := gcc make libc6-dev zlib1g-dev libstb-dev libcjson-dev libcmocka-dev pkg-config g++ libopenmpi-dev openmpi-bin
APT := apt-get install -y --no-install-recommends $(PACKAGES)

# $(call lacks,ZLIB,zlib) is zlib where that is missing, unless the command line says it shall be.
lacks = $(if $(HAVE_$(1))$(filter command,$(origin HAVE_$(1))),,$(2))
DEMO_NEEDS = $(call lacks,CC,gcc+libc6-dev) $(call lacks,STB,stb)
DEMO_WANTS = $(DEMO_NEEDS) $(call lacks,ZLIB,zlib)
TEST_NEEDS = $(call lacks,CC,gcc+libc6-dev) $(call lacks,CMOCKA,cmocka)
TEST_WANTS = $(DEMO_WANTS) $(call lacks,CJSON,cJSON) $(call lacks,CMOCKA,cmocka)

# ---- flags ----------------------------------------------------------------------------------------------

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes \
        -Wmissing-prototypes -Wpointer-arith -Wvla
OPT ?= -O2 -g
SAN ?=
DEFS := -D_GNU_SOURCE -DTN_NO_MACROS -DTN_BUILD_CC='"$(CC)"' \
        $(if $(HAVE_ZLIB),-DTN_HAVE_ZLIB) \
        $(if $(HAVE_STB),-DTN_HAVE_STB) $(if $(HAVE_CJSON),-DTN_HAVE_CJSON)
BASE := -std=c11 $(OPT) $(WARN) $(SAN) $(CPPFLAGS) $(CFLAGS) -fPIC -pthread
LIBCFLAGS := $(BASE) $(DEFS) -fvisibility=hidden -fno-semantic-interposition -ffp-contract=off -Iinclude
APPCFLAGS := $(BASE) -D_GNU_SOURCE -Iinclude
TESTCFLAGS := $(BASE) $(filter-out -DTN_NO_MACROS,$(DEFS)) -ffp-contract=off -Iinclude -I.
# musl gives threads, also those of the host that run steps, 128 KiB of stack unless a program or library asks for more.
STACK := -Wl,-z,stack-size=8388608
LIBS := $(if $(HAVE_ZLIB),-lz) $(if $(HAVE_CJSON),-lcjson) -ldl -lm
# Tests do little but call the library: the compiler takes a quarter of the time without optimising them.
TESTOPT ?= -O0
# The flags kernels are compiled with, for what measures the prelude by itself.
NATIVE := $(if $(filter native,$(FOUND)),-march=native)
KERNELFLAGS := -O3 $(NATIVE) -fno-math-errno -fno-trapping-math -ffp-contract=off -fopenmp-simd

# ---- files ----------------------------------------------------------------------------------------------

ROOMS := src/core src/comm src/device src/device/cpu src/device/cuda src/device/ref src/runtime src/record src/check src/session src/report src/export src/ops autograd fuser fuser/graph fuser/loops fuser/group fuser/text nn
SRC := $(sort $(foreach d,$(ROOMS),$(wildcard $(d)/*.c)))
OBJ := $(SRC:%.c=$(BUILD)/obj/%.o)
MPI := $(if $(HAVE_MPI),$(BUILD)/libtensor_mpi.so)
EXAMPLES := $(patsubst examples/%.c,$(BUILD)/%,$(wildcard examples/*.c))
TOOLS := $(patsubst data/%.c,$(BUILD)/%,$(wildcard data/*.c))
TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))
JSON_CHECK := $(if $(HAVE_CJSON),$(BUILD)/tests/json_check)
DRILL := $(if $(HAVE_MPI),$(BUILD)/tests/ranks_drill $(BUILD)/tests/ranks_random $(BUILD)/tests/ranks_passes)
SHELL_TESTS ?= $(wildcard tests/test_*.sh)
LONG := $(patsubst tests/long/%.c,$(BUILD)/long/%,$(wildcard tests/long/*.c))
# A program of several files, some of which look inside the library. The yardsticks want this processor's vectors.
FVE := $(wildcard bench/fused_vs_eager/*.c)
ZOO := $(wildcard bench/zoo/*.c)
BENCHES := $(patsubst bench/%.c,$(BUILD)/bench/%,$(wildcard bench/*.c))
TENSOR := $(wildcard tools/*.c)
MACROS := include/tensor_macros.h
DECLARED := $(filter-out $(MACROS),$(wildcard include/*.h))
HEADERS := $(DECLARED) $(MACROS)

.PHONY: all lib examples tools programs help deps doctor demo test asan tsan test-long fuzz faults bench bench-peers bench-zoo calibrate \
        run-tests need-demo need-test install uninstall clean format FORCE
all: lib examples tools $(BUILD)/fused_vs_eager $(BUILD)/zoo $(BUILD)/tensor
lib: $(BUILD)/libtensor.a $(BUILD)/libtensor.so $(MPI)
examples: $(EXAMPLES)
tools: $(TOOLS)
programs: all $(TESTS) $(JSON_CHECK) $(DRILL)

help:
	@echo 'make             the library, static and shared, and the examples, in build/'
	@echo 'make demo        trains a network on the digits that are shipped; sets fused beside eager steps'
	@echo 'make test        the test suite; ONLY="test_ops test_views" runs some of it'
	@echo 'make deps        installs the Debian packages all this needs, or prints the line that does'
	@echo 'make doctor      what was found on this machine, and what will be used'
	@echo 'make asan        the test suite under AddressSanitizer, UBSan and the leak check'
	@echo 'make tsan        the tests of threads under ThreadSanitizer'
	@echo 'make cusim-full  the tests of programs on the CUDA device, on a simulated GPU (tests/cusim/README.md)'
	@echo 'make gpu-check   on a machine with a GPU: tests, benchmarks beside PyTorch and JAX, compute-sanitizer'
	@echo 'make portable    builds and runs it for musl, aarch64 and riscv64, as far as compilers and qemu are here'
	@echo 'make test-long   all 2^32 arguments of each function, and very many random graphs and programs'
	@echo 'make fuzz        ten million mutated inputs for each reader of files and settings; FUZZ="idx text" for some'
	@echo 'make calibrate   measures how fast this machine is, for what is fused and for predictions'
	@echo 'make faults      trains with every call of the system failing, one after the other'
	@echo 'make bench       times each operator, and the fused against the eager step'
	@echo 'make bench-peers times operators beside PyTorch; bench-zoo: training steps of many models beside PyTorch and JAX'
	@echo 'make install     PREFIX=/usr/local DESTDIR=; make uninstall takes it away again'
	@echo 'make manual      build/operators.md, the operators by chapter'
	@echo 'make texts       writes tests/texts, the kernels and plans of 75 programs, where a change of them is meant'
	@echo 'make format      lays out the sources with clang-format'
	@echo 'make clean       removes what was built'
	@echo 'with CC=clang, HAVE_ZLIB= (build as if zlib were not there), DEPS=no (install nothing), V=1'

# ---- building -------------------------------------------------------------------------------------------

$(BUILD) $(BUILD)/tests $(BUILD)/bench $(BUILD)/long:
	@mkdir -p $@

# Rewritten only when it differs, so that what depends on it is rebuilt only then.
STAMP = $(CC) $(CC_VERSION) | $(LIBCFLAGS) | $(APPCFLAGS) | $(TESTCFLAGS) $(TESTOPT) | $(LDFLAGS) $(LIBS)
me := $(shell echo $$$$)
when_changed = @echo '$(subst ','\'',$(1))' >$@.$(me); if cmp -s $@.$(me) $@; then rm $@.$(me); else mv $@.$(me) $@; fi
$(BUILD)/flags: FORCE | $(BUILD) $(MACROS)
	$(call when_changed,$(STAMP))
$(BUILD)/sources: FORCE | $(BUILD)
	$(call when_changed,$(SRC))

# Macros that give functions their caller's line, of the headers that declare these, beside them; not in git.
$(MACROS): tools/calls.awk $(DECLARED)
	$(Q)awk -f tools/calls.awk $(DECLARED) >$@.$(me) && mv $@.$(me) $@

$(BUILD)/obj/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(LIBCFLAGS) -MMD -MP -c $< -o $@

# stb_image adds 0 to a null pointer where the first data of a PNG are empty.
$(BUILD)/obj/nn/decode.o: private LIBCFLAGS += $(if $(findstring undefined,$(SAN)),-fno-sanitize=pointer-overflow -fno-sanitize=nonnull-attribute)

# Text that is compiled at run time is embedded by the assembler, which tracks no dependencies.
$(BUILD)/obj/src/device/embed.o: $(wildcard src/device/prelude/* src/device/cpu/kernels/* src/device/cuda/kernels/*)

# The tests call internal functions too. Users get one object in which those are local and clash with nothing.
$(BUILD)/internal.a: $(OBJ) $(BUILD)/sources Makefile
	$(call say,AR,$@)
	@rm -f $@
	$(Q)$(AR) rcs $@ $(OBJ)

ifdef SAN
$(BUILD)/libtensor.a: $(BUILD)/internal.a
	@cp $< $@
else
$(BUILD)/libtensor.a: $(OBJ) $(BUILD)/sources Makefile
	$(call say,AR,$@)
	@rm -f $@
	$(Q)$(LD) -r -o $(BUILD)/obj/libtensor.o $(OBJ)
	$(Q)$(OBJCOPY) --localize-hidden $(BUILD)/obj/libtensor.o
	$(Q)$(AR) rcs $@ $(BUILD)/obj/libtensor.o
endif

$(BUILD)/libtensor.so.$(VERSION): $(OBJ) $(BUILD)/sources Makefile
	$(call say,LINK,$@)
	$(Q)$(CC) $(SAN) $(LDFLAGS) -shared -Wl,-soname,libtensor.so.$(SOVERSION) -Wl,--as-needed $(if $(SAN),,-Wl,-z,defs) \
	  -o $@ $(OBJ) -pthread $(LIBS) $(STACK)

$(BUILD)/libtensor.so: $(BUILD)/libtensor.so.$(VERSION)
	@ln -sf libtensor.so.$(VERSION) $(BUILD)/libtensor.so.$(SOVERSION)
	@ln -sf libtensor.so.$(VERSION) $@

# By MPI's own compiler, which knows where that MPI is. It takes nothing of the library.
$(BUILD)/libtensor_mpi.so: $(wildcard src/comm/mpi/*.c) src/comm/comm.h src/comm/mpi/plugin.h $(BUILD)/flags
	$(call say,MPICC,$@)
	$(Q)OMPI_CC='$(CC)' MPICH_CC='$(CC)' $(MPICC) -std=c11 $(OPT) -O3 $(WARN) $(CPPFLAGS) $(CFLAGS) -D_GNU_SOURCE -fPIC -pthread -fvisibility=hidden -shared $(LDFLAGS) -o $@.new $(filter %.c,$^) && mv $@.new $@

# Programs: compiled and linked in one go.
link = $(Q)$(CC) $(1) -MMD -MP -MF $@.d -MT $@ $< -o $@ $(LDFLAGS)
TAIL := -pthread $(LIBS) $(STACK)

$(EXAMPLES): $(BUILD)/%: examples/%.c $(BUILD)/libtensor.a
	$(call say,CC,$<)
	$(call link,$(APPCFLAGS)) $(BUILD)/libtensor.a $(TAIL)
$(BUILD)/fused_vs_eager: $(FVE:%.c=$(BUILD)/fve/%.o) $(BUILD)/internal.a
$(BUILD)/tensor: $(TENSOR:%.c=$(BUILD)/fve/%.o) $(BUILD)/internal.a
$(BUILD)/zoo: $(ZOO:%.c=$(BUILD)/fve/%.o) $(BUILD)/internal.a
$(BUILD)/fused_vs_eager $(BUILD)/tensor $(BUILD)/zoo:
	$(call say,LINK,$@)
	$(Q)$(CC) $(SAN) $(LDFLAGS) -o $@ $^ $(TAIL)
$(BUILD)/fve/bench/fused_vs_eager/yard%.o: FVEFLAGS := -O3 $(NATIVE)
$(BUILD)/fve/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(TESTCFLAGS) $(FVEFLAGS) -MMD -MP -c $< -o $@
$(TOOLS): $(BUILD)/%: data/%.c $(BUILD)/flags
	$(call say,CC,$<)
	$(call link,$(APPCFLAGS) $(if $(HAVE_ZLIB),-DTN_HAVE_ZLIB) $(if $(HAVE_STB),-DTN_HAVE_STB)) $(if $(HAVE_ZLIB),-lz) -lm
$(BUILD)/tests/test_cuda_api $(BUILD)/tests/test_cusim: MOREFLAGS := $(if $(CUDA_INCLUDE),-DTN_HAVE_CUDA_HEADERS $(if $(wildcard $(CUDA_INCLUDE)/nccl.h),-DTN_HAVE_NCCL_HEADER) -isystem $(CUDA_INCLUDE))
# stb_image_write, which writes the images of a test, shifts bits out of an int.
$(BUILD)/tests/test_nn_images: private MOREFLAGS += $(if $(findstring undefined,$(SAN)),-fno-sanitize=shift)
# These compute: the answers they compare with, or what many numbers differ by.
$(addprefix $(BUILD)/tests/,test_math test_gemm test_attention test_conv test_random_graphs test_random_programs test_random_training \
    test_cuda_attention test_cuda_attention_tiles test_cuda_conv test_cuda_tiles test_cuda_products test_cuda_products_fused test_ops): private TESTOPT := -O1
$(BUILD)/tests/test_cuda_cases $(BUILD)/tests/test_texts: $(BUILD)/fve/bench/fused_vs_eager/cases.o
$(BUILD)/tests/%: tests/%.c $(BUILD)/internal.a | $(BUILD)/tests
	$(call say,CC,$<)
	$(call link,$(TESTCFLAGS) $(TESTOPT) $(MOREFLAGS)) $(filter %.o,$^) -lcmocka $(BUILD)/internal.a $(TAIL)
# The drill calls MPI itself, too.
$(BUILD)/tests/ranks_%: tests/ranks/%.c $(BUILD)/libtensor.a | $(BUILD)/tests
	$(call say,MPICC,$<)
	$(Q)OMPI_CC='$(CC)' MPICH_CC='$(CC)' $(MPICC) $(APPCFLAGS) $(LDFLAGS) -o $@ $< $(BUILD)/libtensor.a $(TAIL)
$(BUILD)/bench/%: bench/%.c $(BUILD)/internal.a | $(BUILD)/bench
	$(call say,CC,$<)
	$(call link,$(TESTCFLAGS) -O3 $(NATIVE)) $(BUILD)/internal.a $(TAIL)
$(BUILD)/long/%: tests/long/%.c $(BUILD)/flags | $(BUILD)/long
	$(call say,CC,$<)
	$(call link,$(APPCFLAGS) $(KERNELFLAGS) -I.) -pthread -lm

-include $(OBJ:.o=.d) $(FVE:%.c=$(BUILD)/fve/%.d) $(ZOO:%.c=$(BUILD)/fve/%.d) $(TENSOR:%.c=$(BUILD)/fve/%.d) $(wildcard $(BUILD)/*.d $(BUILD)/tests/*.d $(BUILD)/stand-in/*.d $(BUILD)/bench/*.d $(BUILD)/long/*.d)

# ---- the simulated GPU ----------------------------------------------------------------------------------

# A library of its own (tests/cusim/README.md). It is never sanitized: it switches stacks, and it checks what
# its kernels do by itself. The sanitized build takes that of the other, with the kernels that it has compiled.
CUSIM_AT ?= $(BUILD)/cusim
$(CUSIM_AT)/flags: FORCE
	@mkdir -p $(@D)
	$(call when_changed,$(CC) $(CC_VERSION) $(NATIVE))
CUSIM := $(wildcard tests/cusim/*.c)
$(CUSIM:tests/cusim/%.c=$(CUSIM_AT)/%.o): $(CUSIM_AT)/%.o: tests/cusim/%.c $(CUSIM_AT)/flags
	$(call say,CC,$<)
	$(Q)$(CC) -std=c11 -O3 $(NATIVE) -g $(WARN) -D_GNU_SOURCE -DTN_NO_MACROS -fPIC -pthread -fvisibility=hidden -fno-strict-aliasing -I. -DCUSIM_INCLUDE='"$(CURDIR)/tests/cusim/include"' -MMD -MP -c $< -o $@
$(CUSIM_AT)/nvrtc.o: tests/cusim/shim.h
$(CUSIM_AT)/libcusim.so: $(CUSIM:tests/cusim/%.c=$(CUSIM_AT)/%.o) Makefile
	$(call say,LINK,$@)
	$(Q)$(CC) -shared -Wl,-soname,libcusim.so -Wl,-z,defs -o $@.new $(filter %.o,$^) -pthread -ldl -lm
	@mv $@.new $@
$(CUSIM_AT)/libnvrtc_old.so: tests/cusim/old/nvrtc.c $(CUSIM_AT)/flags
	$(call say,LINK,$@)
	$(Q)$(CC) -std=c11 -O2 $(WARN) -D_GNU_SOURCE -DTN_NO_MACROS -fPIC -shared -fvisibility=hidden -I. -o $@ $<
-include $(wildcard $(CUSIM_AT)/*.d)
.PHONY: cusim
cusim: $(CUSIM_AT)/libcusim.so $(CUSIM_AT)/libnvrtc_old.so
# All tests of programs on it. Kernels are kept from run to run.
CUSIM_FULL ?= test_own_host test_ops test_programs test_programs_kept test_views test_promotion test_subgradients test_golden test_nn_optim test_optimizers
CUSIM_RUN = TENSOR_DEVICE=cuda $(foreach l,DRIVER NVRTC BLASLT,TENSOR_CUDA_$(l)=$(abspath $(CUSIM_AT))/libcusim.so)
.PHONY: cusim-full
cusim-full: need-test
	$(again) cusim $(CUSIM_FULL:%=$(BUILD)/tests/%) $(BUILD)/tests/test_cuda_conv $(BUILD)/tests/test_cuda_attention $(BUILD)/tests/test_cuda_attention_tiles
	@BUILD='$(BUILD)' TEST_TIMEOUT=3600 TEST_ENV='$(CUSIM_RUN) $(CUSIM_ENV)' sh tests/run.sh $(CUSIM_FULL:%=$(BUILD)/tests/%)
	@$(BUILD)/tests/test_cuda_conv full
	@$(BUILD)/tests/test_cuda_attention full
	@$(BUILD)/tests/test_cuda_attention_tiles full
# What NVRTC makes of our own kernels on tensor cores, into build/gpu/KERNELS.md; no GPU is needed.
$(BUILD)/gpu/%: tests/gpu/%.c $(wildcard tests/gpu/table*.h) $(BUILD)/internal.a
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(call link,$(TESTCFLAGS)) $(BUILD)/internal.a $(TAIL)
.PHONY: cuda-kernels
cuda-kernels: $(BUILD)/gpu/table
	$(Q)$< >$(BUILD)/gpu/KERNELS.md
# On a machine with a GPU: everything that is said of one, into tests/gpu/RESULTS.md; STAGES="build suite" for some of it,
# RESULTS=FOLDER for another place. It installs nothing; where cmocka is
# missing the suite is built with the stand-in for it, in a folder of its own.
GPU_TESTS ?= $(CUSIM_FULL) test_semantics test_draws test_random_graphs test_random_programs test_nn_layers test_held test_precision
SANITIZED ?= test_programs test_views
GPU_BUILT := $(BUILD)/$(if $(HAVE_CMOCKA),tests,stand-in)
STAND_IN_OPT ?= -O1
$(BUILD)/stand-in/%: tests/%.c tests/gpu/cmocka/cmocka.h $(BUILD)/internal.a
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(call link,$(TESTCFLAGS) $(STAND_IN_OPT) -Itests/gpu/cmocka) $(BUILD)/internal.a $(TAIL)
.PHONY: gpu-check gpu-tests stand-in
stand-in: $(BUILD)/gpu/timed $(GPU_TESTS:%=$(BUILD)/stand-in/%)
gpu-tests: all $(BUILD)/gpu/timed $(GPU_TESTS:%=$(GPU_BUILT)/%)
gpu-check:
	@BUILD='$(BUILD)' MAKE='$(MAKE)' PYTHON='$(PYTHON)' GPU_TESTS='$(GPU_TESTS)' SANITIZED='$(SANITIZED)' \
	 HAVE_STB='$(HAVE_STB)' GPU_BUILT='$(GPU_BUILT)' JOBS='$(JOBS)' STAGES='$(STAGES)' RESULTS='$(RESULTS)' \
	 sh tests/gpu/check.sh
CUSIM_DEFS := -DCUSIM_LIBRARY='"$(call path,$(CUSIM_AT))/libcusim.so"' \
              -DCUSIM_OLD_NVRTC='"$(call path,$(CUSIM_AT))/libnvrtc_old.so"'
CUSIM_TESTS := $(filter $(addprefix $(BUILD)/tests/,test_cusim% test_cuda_loader test_cuda_device test_cuda_products test_cuda_scatter test_cuda_products_fused test_cuda_train test_failed_steps test_cuda_sizes test_cuda_conv test_cuda_prologue test_cuda_tiles test_cuda_tune test_cuda_attention test_cuda_attention_plans test_cuda_attention_tiles test_export_cuda%),$(TESTS))
$(CUSIM_TESTS): $(CUSIM_AT)/libcusim.so $(CUSIM_AT)/libnvrtc_old.so
$(CUSIM_TESTS): private MOREFLAGS += $(CUSIM_DEFS)

# ---- dependencies ---------------------------------------------------------------------------------------

deps:
	@if ! command -v apt-get >/dev/null; then \
	    echo 'make deps: no apt-get here. Debian calls what is needed: $(PACKAGES)' >&2; exit 1; fi; \
	if [ "$$(id -u)" = 0 ]; then as=; elif command -v sudo >/dev/null; then as='sudo '; else \
	    echo 'make deps: needs root. Run as root:' >&2; echo '    $(APT)' >&2; exit 1; fi; \
	echo "make deps: $${as}$(APT)"; \
	export DEBIAN_FRONTEND=noninteractive; \
	$${as}$(APT) || { echo 'make deps: again, with fresh lists of packages' && $${as}apt-get update && $${as}$(APT); } || { \
	    echo 'make deps: failed. Run as root: apt-get update && $(APT)' >&2; exit 1; }

# $(call ensure,target,what it wants,what it cannot do without). Wishes missing are installed, or with DEPS=no
# gone without; what is needed is an error then.
define ensure
@[ -z "$(strip $(2))" ] || { \
    echo "make $(1): missing here: $(strip $(2))"; \
    if [ "$(DEPS)" != no ]; then \
        echo "make $(1): running make deps (DEPS=no refuses)"; \
        $(MAKE) --no-print-directory deps || { \
            echo "make $(1): $(if $(strip $(3)),not without $(strip $(3)),or go on without: make $(1) DEPS=no)" >&2; exit 1; }; \
    elif [ -n "$(strip $(3))" ]; then \
        echo "make $(1): not without $(strip $(3)). Run as root: $(APT)" >&2; exit 1; \
    else echo "make $(1): going on without (DEPS=no)"; fi; }
endef
need-demo:
	$(call ensure,demo,$(DEMO_WANTS),$(DEMO_NEEDS))
need-test:
	$(call ensure,test,$(TEST_WANTS),$(TEST_NEEDS))
	@[ '$(DEPS)' = no ] || command -v clang >/dev/null || { \
	    echo 'make test: missing here: clang, which compiles kernels in some tests; installing it'; \
	    [ "$$(id -u)" = 0 ] && as= || as='sudo -n '; \
	    DEBIAN_FRONTEND=noninteractive $${as}apt-get install -y --no-install-recommends clang >/dev/null 2>&1 || \
	    echo 'make test: going on without clang; those tests are skipped'; }

# What make has found, and what the library says of the machine, once it is built.
doctor:
	@line() { printf '%-18s %s\n' "$$1" "$$2"; }; \
	has() { if [ -n "$$2" ]; then line "$$1" "yes"; else line "$$1" "no - $$3"; fi; }; \
	line 'compiler' '$(if $(HAVE_CC),$(CC_VERSION),no - nothing can be built (CC=$(CC)))'; \
	has zlib '$(HAVE_ZLIB)' 'packed (.gz) data sets cannot be read'; \
	has stb '$(HAVE_STB)' 'PNG and JPEG images cannot be read, so neither can the digits that are shipped'; \
	has cJSON '$(HAVE_CJSON)' 'checkpoints cannot be read'; \
	has MPI '$(if $(HAVE_MPI),$(MPICC))' 'programs cannot be run as several ranks (mpirun)'; \
	has cmocka '$(HAVE_CMOCKA)' 'the tests cannot be built'; \
	missing='$(strip $(TEST_WANTS))'; \
	[ -z "$$missing" ] || line 'missing' "$$missing (make deps installs it)"; \
	if [ -x '$(BUILD)/tensor' ]; then '$(BUILD)/tensor' doctor; else line 'libtensor' 'not built; once it is, it says here what it will use'; fi

# ---- running --------------------------------------------------------------------------------------------

# Sub-makes look at the machine again, which matters after deps, and build in parallel where nobody said how.
again = +@$(MAKE) --no-print-directory $(if $(findstring -j,$(MAKEFLAGS)),,-j$(JOBS))

demo: need-demo
	$(again) examples $(BUILD)/fused_vs_eager
	$(Q)$(BUILD)/mnist_cnn --data data/digits --epochs 2
	$(Q)echo && $(BUILD)/fused_vs_eager --case models --rounds 3 --patience 5

test: need-test
	$(again) run-tests

# What ONLY names, by name or by path, or everything.
SOME = $(foreach t,$(notdir $(basename $(ONLY))),$(if $(wildcard tests/$(t).c),$(BUILD)/tests/$(t),tests/$(t).sh))
# Tests that run make get the same settings, without the job server, which is not theirs.
run-tests: all $(JSON_CHECK) $(DRILL) $(if $(ONLY),$(filter $(BUILD)/%,$(SOME)),$(TESTS)) \
           $(if $(findstring test_ranks,$(ONLY)),cusim) $(if $(findstring test_cusim_programs,$(ONLY)),cusim $(BUILD)/tests/test_ops $(BUILD)/tests/test_own_host $(BUILD)/tests/test_attention $(BUILD)/tests/test_attention_written)
	@BUILD='$(BUILD)' CC='$(CC)' CXX='$(CXX)' SAN='$(SAN)' MAKE='$(MAKE)' \
	 MAKEFLAGS='$(filter-out -j% --jobserver% --no-builtin-rules,$(MAKEFLAGS))' \
	 TEST_SKIP='$(TEST_SKIP)' TEST_SKIP_WHY='$(TEST_SKIP_WHY)' CUSIM_KERNELS='$(CUSIM_AT)/kernels' \
	 sh tests/run.sh $(if $(ONLY),$(SOME),$(TESTS) $(SHELL_TESTS))

# The shell tests are about building, installing and text, and train at length: not about memory.
asan: need-test
	$(again) run-tests BUILD=build-asan CUSIM_AT='$(CUSIM_AT)' SAN='-fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all' \
	  OPT='-O1 -g1 -fno-omit-frame-pointer' SHELL_TESTS= \
	  $(if $(ONLY),,TEST_SKIP='$(notdir $(basename $(wildcard tests/test_*.sh)))' \
	  TEST_SKIP_WHY='builds, installs and trains the README programs; too slow under the sanitizers')
TSAN_TESTS ?= $(filter test_pool test_cpu_device test_cpu_compile test_cpu_memory test_kcache test_threads,$(notdir $(TESTS)))
tsan: need-test
	$(again) run-tests BUILD=build-tsan SAN=-fsanitize=thread OPT='-O1 -g' ONLY='$(or $(ONLY),$(TSAN_TESTS))'

# Which values meet where does not depend on how far kernels are optimised; that these are right, too, is seen
# with fewer.
LONG_GRAPHS ?= 50000
LONG_OPTIMISED ?= 2000
LONG_PROGRAMS ?= 6000
LONG_HALF ?= 5000
LONG_TRAINING ?= 500
LONG_REPLAY ?= 300
LONG_EXPORTS ?= 300
LONG_SEED ?= 1
test-long: need-test
	$(again) programs $(LONG)
	$(again) growth
	@for t in $(LONG); do echo "$$t" && "$$t" || exit 1; done
	TENSOR_KERNEL_OPT=0 $(BUILD)/tests/test_random_graphs --graphs $(LONG_GRAPHS) --seed $(LONG_SEED)
	$(BUILD)/tests/test_random_graphs --graphs $(LONG_OPTIMISED) --seed $(LONG_SEED)
	TENSOR_KERNEL_OPT=0 $(BUILD)/tests/test_export --programs $(LONG_EXPORTS) --seed $(LONG_SEED)
	TENSOR_KERNEL_OPT=0 $(BUILD)/tests/test_export_random --models $(LONG_EXPORTS) --seed $(LONG_SEED)
	$(BUILD)/tests/test_files --kills 300 --seed $(LONG_SEED)
	TENSOR_KERNEL_OPT=0 $(BUILD)/tests/test_half --cases $(LONG_HALF) --seed $(LONG_SEED)
	TENSOR_KERNEL_OPT=1 $(BUILD)/tests/test_random_programs --programs $(LONG_PROGRAMS) --seed $(LONG_SEED)
	TENSOR_KERNEL_OPT=1 $(BUILD)/tests/test_random_training --runs $(LONG_TRAINING) --seed $(LONG_SEED)
	TENSOR_KERNEL_OPT=0 $(BUILD)/tests/test_replay --rounds $(LONG_REPLAY)
	$(BUILD)/tests/test_cuda_text --all
	$(BUILD)/tests/test_cuda_cases --all

# How the host's work grows with the program, counted: with compilers that know no trace-pc nothing is shown.
GROWTH ?= 500
.PHONY: growth
growth:
	$(again) BUILD=build-growth SAN=-fsanitize-coverage=trace-pc OPT=-O1 build-growth/bench/growth
	build-growth/bench/growth $(GROWTH)

# Every call that a training makes of the system, failing (tests/faults): some hours; FAULTS="--every 50" takes one of 50.
FAULTS ?=
faults: need-test
	$(again) $(BUILD)/faults/sweep $(BUILD)/faults/cc
	@sh tests/faults/run.sh $(BUILD) --jobs $(JOBS) $(FAULTS)
$(BUILD)/faults/cc: tests/faults/cc.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(call link,$(APPCFLAGS))
# Its malloc, open and fsync stand for those of every library.
$(BUILD)/faults/sweep: $(wildcard tests/faults/*) $(BUILD)/internal.a
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(APPCFLAGS) -I. -rdynamic $(LDFLAGS) -o $@ $(filter %.c,$(filter-out %/cc.c,$^)) $(BUILD)/internal.a $(TAIL)

# What reads files, settings and numbers of strangers, on bytes that nobody thought of (tests/fuzz).
FUZZ_RUNS ?= 10000000
fuzz: need-test
	+@MAKE='$(MAKE)' BUILD=build-fuzz CC='$(CC)' RUNS='$(FUZZ_RUNS)' sh tests/fuzz/run.sh $(FUZZ)
$(BUILD)/fuzz/libfuzzer: tests/fuzz/libfuzzer.c $(wildcard tests/fuzz/*.h) $(BUILD)/internal.a
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(call link,$(TESTCFLAGS) -fsanitize=fuzzer) $(BUILD)/internal.a $(TAIL)

# Other processors, libcs and compilers; tests/portable.sh says what it takes.
.PHONY: portable
portable:
	@BUILD='$(BUILD)/portable' CC='$(CC)' MAKE='$(MAKE)' MAKEFLAGS= TEST_TIMEOUT=7200 $(if $(TARGETS),TARGETS='$(TARGETS)') sh tests/run.sh tests/portable.sh

calibrate: $(BUILD)/fused_vs_eager
	$(Q)$(BUILD)/fused_vs_eager --calibrate

BENCH_SHAPE ?= 65536 1024
bench: all $(BENCHES)
	@for case in $$($(BUILD)/bench/eager_ops --list); do $(BUILD)/bench/eager_ops $$case $(BENCH_SHAPE) || exit 1; done
	@for shape in dram cache; do $(BUILD)/fused_vs_eager --case fusions --shape $$shape --json $(BUILD)/bench/$$shape.json || exit 1; done
	@$(BUILD)/fused_vs_eager --case models --json $(BUILD)/bench/models.json
# Beside PyTorch and JAX, which have to be there: what is not is left out and named. MODELS names some of the zoo.
PYTHON ?= python3
bench-zoo: all
	$(PYTHON) bench/zoo.py --build $(BUILD) $(MODELS)
bench-peers: all $(BENCHES)
	$(PYTHON) bench/peers.py --program $(BUILD)/bench/eager_ops

# ---- installing -----------------------------------------------------------------------------------------

define PC
prefix=$(call path,$(PREFIX))
libdir=$(LIBDIR)
includedir=$(INCLUDEDIR)

Name: libtensor
Description: tensors that train, with operator fusion
Version: $(VERSION)
Libs: -L"$${libdir}" -ltensor
Libs.private: -pthread $(strip $(LIBS))
Cflags: -I"$${includedir}"
endef

# find_package(libtensor): the targets libtensor::libtensor, shared, and libtensor::archive.
define CMAKE_CONFIG
add_library(libtensor::libtensor SHARED IMPORTED)
set_target_properties(libtensor::libtensor PROPERTIES IMPORTED_SONAME libtensor.so.$(SOVERSION)
    IMPORTED_LOCATION "$(LIBDIR)/libtensor.so.$(VERSION)" INTERFACE_INCLUDE_DIRECTORIES "$(INCLUDEDIR)")
add_library(libtensor::archive STATIC IMPORTED)
set_target_properties(libtensor::archive PROPERTIES IMPORTED_LOCATION "$(LIBDIR)/libtensor.a"
    INTERFACE_INCLUDE_DIRECTORIES "$(INCLUDEDIR)" INTERFACE_LINK_LIBRARIES "-pthread $(strip $(LIBS))")
endef
define CMAKE_VERSION
set(PACKAGE_VERSION $(VERSION))
if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION OR NOT CMAKE_SIZEOF_VOID_P EQUAL 8)
    set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
endif()
endef

install: export PC_TEXT = $(PC)
install: export CMAKE_CONFIG_TEXT = $(CMAKE_CONFIG)
install: export CMAKE_VERSION_TEXT = $(CMAKE_VERSION)
# The manual of operators, of the header that declares them.
.PHONY: manual
manual: $(BUILD)/operators.md
$(BUILD)/operators.md: include/tensor_ops.h tools/manual.awk | $(BUILD)
	$(Q)awk -f tools/manual.awk $< >$@.new && mv $@.new $@

install: lib $(BUILD)/tensor $(BUILD)/operators.md
	install -d '$(DESTDIR)$(BINDIR)' '$(DESTDIR)$(MANDIR)/man1' '$(DESTDIR)$(INCLUDEDIR)' '$(DESTDIR)$(LIBDIR)/pkgconfig' '$(DESTDIR)$(LIBDIR)/cmake/libtensor' '$(DESTDIR)$(DOCDIR)'
	install -m 644 $(HEADERS) '$(DESTDIR)$(INCLUDEDIR)'
	install -m 644 LICENSE CHANGELOG.md $(BUILD)/operators.md '$(DESTDIR)$(DOCDIR)'
	install -d '$(DESTDIR)$(PYDIR)' && install -m 644 python/libtensor.py '$(DESTDIR)$(PYDIR)'
	install -m 644 $(BUILD)/libtensor.a '$(DESTDIR)$(LIBDIR)'
	install -m 755 $(BUILD)/libtensor.so.$(VERSION) '$(DESTDIR)$(LIBDIR)'
	$(if $(HAVE_MPI),install -m 755 $(BUILD)/libtensor_mpi.so '$(DESTDIR)$(LIBDIR)')
	install -m 755 $(BUILD)/tensor '$(DESTDIR)$(BINDIR)'
	install -m 644 docs/tensor.1 '$(DESTDIR)$(MANDIR)/man1'
	ln -sf libtensor.so.$(VERSION) '$(DESTDIR)$(LIBDIR)/libtensor.so.$(SOVERSION)'
	ln -sf libtensor.so.$(VERSION) '$(DESTDIR)$(LIBDIR)/libtensor.so'
	@printf '%s\n' "$$PC_TEXT" >'$(DESTDIR)$(LIBDIR)/pkgconfig/libtensor.pc'
	@printf '%s\n' "$$CMAKE_CONFIG_TEXT" >'$(DESTDIR)$(LIBDIR)/cmake/libtensor/libtensorConfig.cmake'
	@printf '%s\n' "$$CMAKE_VERSION_TEXT" >'$(DESTDIR)$(LIBDIR)/cmake/libtensor/libtensorConfigVersion.cmake'
	@case '$(DESTDIR)$(LIBDIR)' in /usr/lib* | /usr/local/lib) ldconfig ;; esac

uninstall:
	cd '$(DESTDIR)$(INCLUDEDIR)' && rm -f $(notdir $(HEADERS))
	rm -f '$(DESTDIR)$(PYDIR)/libtensor.py'
	cd '$(DESTDIR)$(DOCDIR)' && rm -f LICENSE CHANGELOG.md operators.md
	rmdir '$(DESTDIR)$(DOCDIR)' 2>/dev/null || :
	rm -f '$(DESTDIR)$(BINDIR)/tensor' '$(DESTDIR)$(MANDIR)/man1/tensor.1'
	cd '$(DESTDIR)$(LIBDIR)' && rm -f libtensor.a libtensor.so libtensor.so.* libtensor_mpi.so pkgconfig/libtensor.pc cmake/libtensor/libtensorConfig*.cmake

clean:
	rm -rf build build-asan build-tsan $(BUILD)

# The texts of kernels and plans that tests/test_texts.c compares with, where a change of them is meant.
.PHONY: texts
texts: $(BUILD)/tests/test_texts
	@mkdir -p tests/texts/c tests/texts/cuda
	$(Q)TEXTS=tests/texts $(BUILD)/tests/test_texts

# With clang-format 14, which leaves the tree as it is checked in; other versions lay out some lines otherwise.
format:
	clang-format -i $(SRC) $(DECLARED) $(wildcard src/*/*.h src/*/*/*.h autograd/*.h fuser/*.h fuser/*/*.h nn/*.h examples/*.[ch] tools/*.[ch] bench/*.[ch] bench/*/*.[ch] tests/*.[ch] tests/*/*.[ch] data/*.c)
