# calls.awk - chapter 13 of tensor.h, made of the declarations in the headers: for each function that takes its caller's
# line, the macro that gives it and lets options be named.
#
#   awk -f tools/calls.awk HEADER..
function declare(d, is_op,    part, n, at, name, last) {
    gsub(/\([^()]*\)/, "", d) # of parameters that are functions
    n = split(d, part, /,[ \n]*/)
    at = is_op ? 1 : 2
    name = part[at]
    last = part[n]
    macro = name
    sub(/_with$/, "", macro)
    if (last ~ /^tn_number /)
        print "#define tn_" macro "(x, v) tn_" name "_at(x, TN_NUMBER(v), __FILE__, __LINE__)"
    else if (sub(/ \*(options|operands)$/, "", last) && sub(/^const /, "", last))
        print "#define tn_" macro "(...) TN_CALL" n - at - 1 "_(tn_" name "_at, " last ", __VA_ARGS__, .size = sizeof(" last "))"
    else
        print "#define tn_" macro "(...) tn_" name "_at(__VA_ARGS__, __FILE__, __LINE__)"
}
{ text = text $0 "\n" }
END {
    print "/* tensor_macros.h - chapter 13 of <tensor.h>, made of the headers by tools/calls.awk. */\n#if !defined(TENSOR_MACROS_H) && !defined(TN_NO_MACROS)\n#define TENSOR_MACROS_H"
    gsub(/\/\*([^*]|\*+[^*\/])*\*+\//, "", text)
    n = split(text, statement, /;+/) # by a character, some split by lines as well
    for (i = 1; i <= n; i++)
        if (match(statement[i], /\nTN_(OP|FUNCTION|NEW)\(.*\)/)) {
            call = substr(statement[i], RSTART + 1, RLENGTH - 2)
            declare(substr(call, index(call, "(") + 1), call ~ /^TN_OP/)
        }
    print "#endif"
}
