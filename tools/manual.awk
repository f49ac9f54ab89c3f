# manual.awk - the manual of operators, in Markdown, of the header that declares them: make manual.
#
#   awk -f tools/manual.awk include/tensor_ops.h
#
# Chapters become headings, comments text, and a declaration its call, with what is said beside it.
function flush() { if (text != "") print text "\n"; text = "" }
function bare(line) { gsub(/^[ \t]*(\/\*|\*\/|\*)?[ \t]?|[ \t]*\*\/[ \t]*$/, "", line); return line }
BEGIN { print "# Operators\n\nMade of include/tensor_ops.h by `make manual`. Shapes broadcast and dtypes promote as in PyTorch; an operator that\ncannot be done returns NULL, and the session says why.\n" }
/^\/\* ---- / { flush(); sub(/^\/\* ---- [0-9]+ /, ""); sub(/ -+( \*\/)?$/, ""); print "## " $0 "\n"; inside = 1; next }
/^\/\*/ { flush(); inside = 1 }
/^TN_OP\(/ || more {
    if (!more) { flush(); call = $0 } else call = call " " bare($0)
    more = call !~ /;/
    if (more) next
    said = call; sub(/;.*/, "", call); sub(/^[^;]*;[ \t]*/, "", said)
    opened = said ~ /\/\*/ && said !~ /\*\//
    sub(/^TN_OP\(/, "tn_", call); sub(/, /, "(", call)
    if (call !~ /\(/) sub(/\)$/, "()", call)
    text = "- `" call "`" (bare(said) == "" ? "" : "  \n  " bare(said))
    if (!opened) flush()
    inside = opened
    next
}
inside { text = text (text == "" ? "" : "\n") bare($0); if ($0 ~ /\*\//) { inside = 0; flush() } }
