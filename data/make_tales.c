/* make_tales.c - tells the small tales that are shipped in data/tales.txt.
 *
 *   build/make_tales [bytes [seed]] >data/tales.txt
 *
 * writes tales until there are so many bytes (160000), so that build/gpt has a text to learn from. A tale is
 * what a grammar derives: a rule's alternatives stand between bars, $name is another rule, and the cast, @a
 * to @d, is drawn once a tale, so that who set out is who comes home. Read `expand` first.
 *
 * Data: `rules` is the grammar; `tale` holds the cast of the tale being told, the random state, and how far
 * the line has got, since lines are broken at 72 columns as they are written. */
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 72, CAST = 4, WORD = 64 };

static const struct rule {
    const char *name, *text;
} rules[] = {
    {"tale", "$opening $want $road $meeting $deal $turn $end"},
    {"opening",
     "once there was $kind called @a, who lived $home.|in $land there lived $kind, and its name was @a.|"
     "long before your time @a, $kind, kept house $home.|@a was $kind. It lived $home, and it was $mood."},
    {"kind", "a $trait $beast|a $beast|a $trait little $beast|an old $beast"},
    {"beast", "fox|hare|goose|badger|heron|mole|otter|raven|hedgehog|toad|marten|cricket"},
    {"trait", "proud|hungry|clever|lazy|gentle|stubborn|lonely|merry|brave|careful"},
    {"home", "$under the $tree|$beside the mill|in a hollow $tree|$beside $water|where the $tree grows"},
    {"under", "under|beneath|among the roots of"},
    {"beside", "beside|behind|not far from"},
    {"tree", "oak|willow|old pear tree|birch|thorn|walnut"},
    {"water", "the river|the black pond|the well|a slow brook"},
    {"land",
     "the north country|a valley without a name|the land beyond the hills|a kingdom of three villages"},
    {"mood", "never quite content|as happy as the day was long|always cold|known for its long memory|poor "
             "but honest"},
    {"want", "one $time @a said: \"I want $wish, and I shall have it.\"|what it wanted most was $wish.|"
             "one $time it heard of $wish, and could not sleep for thinking of it.|"
             "\"if only I had $wish!\" said @a every $time."},
    {"time", "morning|evening|night|winter|spring|autumn day"},
    {"wish", "@c|@c and nothing else"},
    {"road", "so it set out $way, and walked for $span.|it took $bread and went $way.|"
             "\"nobody brings it to me,\" it thought, and went $way. It $weather.|so @a left home and went "
             "$way for $span."},
    {"way",
     "over the hills|along the river|through the wood|down the long road|across the marsh|towards the sea"},
    {"span", "a day and a night|three days|seven days|a whole month|one hour"},
    {"bread", "a loaf of bread|three nuts|its stick and its hat|nothing at all|a lantern"},
    {"weather", "rained without end|snowed|was so hot that the stones cracked|blew hard from the east"},
    {"meeting", "at $place it met @b the $beast.|there, at $place, sat @b, a $beast.|"
                "@b, a $trait $beast, was waiting at $place."},
    {"place", "the bridge|the crossroads|a broken wall|the ferry|the gate of the town|the foot of the hill"},
    {"deal", "$greet $answer $bargain|$greet $bargain|$greet $answer $answer $bargain"},
    {"greet", "\"good $hour,\" said @b. \"Where are you going?\"|\"who goes there?\" cried @b.|"
              "\"you look $state,\" said @b.|\"stop!\" said @b. \"What do you want $here?\""},
    {"hour", "morning|day|evening"},
    {"state", "tired|hungry|lost|wet to the bone|sad"},
    {"here", "here|in my country|on this road|at this hour"},
    {"answer", "\"I am looking for @c,\" said @a.|\"I am @a, and I seek @c,\" was the answer.|"
               "@a told the whole story, from beginning to end.|\"I have walked for $span,\" said @a, \"and "
               "my feet hurt.\"|"
               "@b laughed. \"For @c? You are a $fool.\""},
    {"fool", "fool|dreamer|child|brave one|strange guest"},
    {"bargain",
     "\"give me @d, and I will show you where it is.\" @a gave @d, and @b kept its word.|"
     "\"answer me this: what is $riddle?\" @a thought for $span, and said: \"$solution.\" That was right.|"
     "\"then carry me to the other side,\" said @b, and @a did so, although it was heavy.|"
     "\"take @d with you,\" said @b. \"You will need it.\" And so it was."},
    {"riddle",
     "longer than a road and has no end|full by night and empty by day|always coming and never here|"
     "the more of it you take, the more you leave behind"},
    {"solution", "a circle|the sky|tomorrow|a footstep|a story"},
    {"turn",
     "at last it came to $hoard, and there lay @c.|behind $hoard it found @c, just as @b had said.|"
     "in $hoard there was @c, but $guard slept before it.|$guard would not let it pass; but @d helped."},
    {"hoard", "a cave|an empty house|a tower without a door|a garden|the bottom of the well"},
    {"guard", "a great snake|the $beast king|a giant|an old $beast with one eye"},
    {"end",
     "@a took @c home $way, and $moral.|but when @a held @c at last, it $found. So it went home, and $moral.|"
     "@a and @b shared @c between them, and $moral.|then @a laughed, left @c where it was, and $moral."},
    {"found", "was only a stone|was smaller than it had thought|fell to dust|weighed nothing at all"},
    {"moral",
     "if they have not died they live there still|it was never cold again|from that day they were friends|"
     "nobody asked where it had been|it told this tale to everyone who came by|the rest you know"},
    {"name", "Tam|Orla|Brin|Wick|Sefa|Dunstan|Mira|Poll|Hob|Isolde|Garrick|Linnet|Ansel|Yorick"},
    {"thing",
     "the golden apple|the silver bell|a star|the lost crown|the moon's mirror|a feather of the sun bird|"
     "the sword in the lake|the last of the honey"},
    {"gift", "a red thread|a whistle of bone|half a loaf|a candle|a bag of salt|a blue stone"},
};

static struct tale {
    uint64_t random;
    char cast[CAST][WORD];
    char word[WORD]; /* not yet written, since it may have to go on a new line */
    size_t length, column, bytes;
    int quoted, begins; /* inside quotation marks; where a sentence begins, with a capital */
    char last;
} tale;

/* splitmix64, cut down to 0..n-1: the bias is below 2^-26 for the few there are. */
static unsigned below(unsigned n)
{
    uint64_t z = (tale.random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (unsigned)(((z ^ (z >> 31)) >> 32) * n >> 32);
}

static void end_word(int space)
{
    if (tale.column && tale.column + 1 + tale.length > COLUMNS) {
        putchar('\n');
        tale.column = 0;
        tale.bytes++;
    } else if (tale.column && tale.length) {
        putchar(' ');
        tale.column++;
        tale.bytes++;
    }
    fwrite(tale.word, 1, tale.length, stdout);
    tale.column += tale.length;
    tale.bytes += tale.length;
    tale.length = 0;
    if (!space) {
        fputs("\n\n", stdout);
        tale.column = 0;
        tale.bytes += 2;
    }
}

static void put(char c)
{
    if (c == ' ') {
        end_word(1);
        return;
    }
    if (tale.begins && isalpha((unsigned char)c)) {
        c = (char)toupper((unsigned char)c);
        tale.begins = 0;
    }
    if (c == '"') {
        tale.quoted = !tale.quoted;
        tale.begins = tale.quoted || tale.last == '.'; /* "Who goes there?" cried .. */
    } else if (strchr(".!?", c)) {
        tale.begins = 1;
    }
    tale.last = c;
    if (tale.length < WORD) tale.word[tale.length++] = c;
}

/* One alternative of a rule, drawn: *begin to *end. */
static void draw(const char *name, size_t length, const char **begin, const char **end)
{
    for (size_t r = 0; r < sizeof(rules) / sizeof(*rules); r++) {
        if (strlen(rules[r].name) != length || memcmp(rules[r].name, name, length) != 0) continue;
        const char *at = rules[r].text;
        unsigned alternatives = 1;
        for (const char *p = at; *p; p++) alternatives += *p == '|';
        for (unsigned skip = below(alternatives); skip; skip--) at = strchr(at, '|') + 1;
        *begin = at;
        *end = at + strcspn(at, "|");
        return;
    }
    fprintf(stderr, "make_tales: no rule %.*s\n", (int)length, name);
    exit(1);
}

static void expand(const char *at, const char *end)
{
    while (at < end) {
        if (*at == '$') {
            const char *name = ++at, *from, *to;
            while (at < end && islower((unsigned char)*at)) at++;
            draw(name, (size_t)(at - name), &from, &to);
            expand(from, to);
        } else if (*at == '@') {
            for (const char *p = tale.cast[at[1] - 'a']; *p; p++) put(*p);
            at += 2;
        } else {
            put(*at++);
        }
    }
}

static void choose_cast(void)
{
    static const char *const from[CAST] = {"name", "name", "thing", "gift"};
    for (int i = 0; i < CAST; i++) do {
            const char *begin, *end;
            draw(from[i], strlen(from[i]), &begin, &end);
            snprintf(tale.cast[i], WORD, "%.*s", (int)(end - begin), begin);
        } while (i == 1 && !strcmp(tale.cast[0], tale.cast[1]));
}

int main(int argc, char **argv)
{
    static const char whole[] = "$tale";
    size_t bytes = argc > 1 ? strtoul(argv[1], NULL, 10) : 160000;
    tale.random = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    if (argc > 3 || !bytes || (argc > 1 && !isdigit((unsigned char)*argv[1]))) {
        if (argc == 2 || argc == 3)
            fprintf(stderr, "make_tales: bytes is '%s', must be a number above 0\n", argv[1]);
        fprintf(stderr, "usage: make_tales [bytes [seed]] >FILE\n");
        return 2;
    }
    while (tale.bytes < bytes) {
        choose_cast();
        tale.begins = 1;
        expand(whole, whole + strlen(whole));
        end_word(0);
    }
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "make_tales: the output cannot be written\n");
        return 1;
    }
    return 0;
}
