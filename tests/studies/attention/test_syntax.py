"""Heads and syntactic relations: reading and aligning parses, labels, worked arcs, the command."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny import homes, toys
from tiny.attention import entities
from tiny.homes import put

from groundling.cli import main
from groundling.core.errors import InputError
from groundling.data.text.parses import (
    ROOT,
    Parse,
    ParsedWord,
    align_parse,
    format_conllu,
    parse_texts,
    read_parses,
)
from groundling.studies.attention.syntax import (
    TABLE_2,
    LabelScheme,
    ParsedCaption,
    arcs_of,
    make_arc_questions,
    match_parses,
    relabel,
)
from groundling.studies.worlds.commands import WorldConfig
from groundling.studies.worlds.data_sets import write_tasks
from groundling.studies.worlds.world import World
from groundling.tasks.grounding import EntitiesCaption, read_caption, read_captions

BOX = np.array([[0.0, 0, 50, 50]])


def tree(text: str) -> tuple[ParsedWord, ...]:
    """Words of `FORM:HEAD:RELATION`, with `@TAG` where it matters; heads count from 1."""
    words = []
    for number, part in enumerate(text.split()):
        form, head, rest = part.split(":", 2)
        relation, _, tag = rest.partition("@")
        words.append(ParsedWord(form, int(head) - 1, relation, tag, number))
    return tuple(words)


def parse_of(
    words: Sequence[ParsedWord], id: str = "", image: str = "", where: str = "here"
) -> Parse:
    return Parse(tuple(words), tuple(word.form for word in words), where, id, image)


def caption_of(marked: str, image: str = "1", number: int = 0) -> EntitiesCaption:
    boxes = {1: BOX, 2: BOX + 50, 3: BOX[:0]}
    text, phrases = read_caption(marked, boxes, "here")
    with_boxes = tuple(one for one in phrases if len(one.boxes))
    return EntitiesCaption(image, number, text, (100, 100), with_boxes, ())


def said(words: Sequence[ParsedWord]) -> str:
    """The tree in the spelling of `tree`, without tags."""
    return " ".join(f"{word.form}:{word.head + 1}:{word.relation}" for word in words)


# -- CoNLL-U -----------------------------------------------------------------------------------------------------------
FILE = """\
# newdoc id = one
# sent_id = 7#1
# text = They don't see dogs.
1\tThey\tthey\tPRON\tPRP\t_\t4\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\t_\t4\taux\t_\t_
3\tn't\tnot\t_\tRB\t_\t4\tadvmod\t_\t_
4\tsee\tsee\tVERB\tVB\t_\t0\troot\t_\t_
4.1\tghost\t_\t_\t_\t_\t_\t_\t4:dep\t_
5\tdogs\tdog\tNOUN\tNNS\t_\t4\tobj\t_\tSpaceAfter=No
6\t.\t.\tPUNCT\t.\t_\t4\tpunct\t_\t_

# image = 8
1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_
1\tde\t_\t_\t_\t_\t3\tcase\t_\t_
2\tle\t_\t_\t_\t_\t3\tdet\t_\t_
3\tvin\t_\t_\t_\t_\t0\troot\t_\t_
"""


def test_a_file_is_read_with_tokens_of_several_words_and_without_empty_nodes(tmp_path):
    first, second = read_parses(put(tmp_path / "a.conllu", FILE))
    assert (first.id, first.image, second.id, second.image) == ("7#1", "", "", "8")
    assert first.where.endswith("a.conllu, line 1") and second.where.endswith("line 13")
    assert first.tokens == ("They", "don't", "see", "dogs", ".")
    assert said(first.words) == (
        "They:4:nsubj do:4:aux n't:4:advmod see:0:root dogs:4:obj .:4:punct"
    )
    assert [word.tag for word in first.words] == ["PRON", "AUX", "RB", "VERB", "NOUN", "PUNCT"]
    spans = align_parse(first, "They don't see dogs.")
    assert spans is not None
    assert spans.tolist() == [[0, 4], [5, 7], [7, 10], [11, 14], [15, 19], [19, 20]]
    fused = align_parse(second, "Du vin")
    assert fused is not None and fused.tolist() == [[0, 2], [0, 2], [3, 6]]
    put(tmp_path / "b.conllu", "\n".join([*format_conllu(first), *format_conllu(second)]))
    again = read_parses(tmp_path)
    assert [one.words for one in again] == [one.words for one in (first, second)] * 2
    assert again[2].tokens == first.tokens


@pytest.mark.parametrize(
    ("tokens", "text", "spans"),
    [
        (["``", "A", "''", "-LRB-", "b"], '"a" ( b', [[0, 1], [1, 2], [2, 3], [4, 5], [6, 7]]),
        (["``", "A"], "`` a", [[0, 2], [3, 4]]),
        (["10 000", "dogs"], "10 000 dogs", [[0, 6], [7, 11]]),
        (["dark", "-", "haired"], "dark-haired", [[0, 4], [4, 5], [5, 11]]),
        (["a", "dog"], "a dogs", None),
        (["a", "dog"], "a dog .", None),
        (["a", "dog", "."], "a dog", None),
        (["İ"], "i", None),
    ],
)
def test_words_are_found_by_their_characters(tokens: list[str], text: str, spans: Any) -> None:
    words = [ParsedWord(form, number - 1, "dep", "", number) for number, form in enumerate(tokens)]
    found = align_parse(parse_of(words), text)
    assert (found if found is None else found.tolist()) == spans


NO_TREE = "expected a tree: a single word with HEAD 0"


@pytest.mark.parametrize(
    ("old", "new", "line", "told"),
    [
        ("1\tThey", "1 They", 4, "not enough values to unpack (expected 10, got 9)"),
        ("1\tThey", "2\tThey", 4, "ID 2 and FORM 'They', expected word 1"),
        ("2-3\t", "3-2\t", 5, "ID 3-2 and FORM"),
        ("2-3\t", "2-9\t", 1, "the sentence has 6 words, expected more"),
        ("\t4\tnsubj", "\t_\tnsubj", 4, "invalid literal for int() with base 10: '_'"),
        ("\t4\tnsubj", "\t9\tnsubj", 1, NO_TREE),
        ("\t4\tnsubj", "\t1\tnsubj", 1, NO_TREE),
        ("\t0\troot\t_\t_\n4.1", "\t5\troot\t_\t_\n4.1", 1, NO_TREE),
        ("\t4\tobj", "\t0\tobj", 1, NO_TREE),
        ("\tobj", "\t_", 10, "no DEPREL; the text may not be parsed"),
        ("\tdogs\t", "\t \t", 10, "and FORM ' ', expected word"),
        ("# image", "# x = y\n\n# image", 13, NO_TREE),
        ("\n\n# image", "\n# image", 13, "ID 1-2 and FORM"),
    ],
)
def test_a_damaged_file_is_told_with_its_line(tmp_path, old, new, line, told):
    path = put(tmp_path / "a.conllu", FILE.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        read_parses(path)
    assert str(caught.value).startswith(f"{path}, line {line}: ") and told in str(caught.value)


# -- labels ------------------------------------------------------------------------------------------------------------
SENTENCES = {
    "a preposition between verb and noun": (
        "men:2:nsubj sit:0:root@VERB on:5:case the:5:det grass:2:obl",
        "men:2:nsubj sit:0:root@VERB on:2:prep the:5:det grass:3:pobj",
    ),
    "between nouns": (
        "dog:0:root@NOUN with:3:case ears:1:nmod",
        "dog:0:root@NOUN with:1:prep ears:2:pobj",
    ),
    "two prepositions": (
        "runs:0:root@VBZ out:4:case of:4:case water:1:obl",
        "runs:0:root@VBZ out:1:prep of:2:prep water:3:pobj",
    ),
    "at the top": ("on:2:case benches:0:root", "on:2:case benches:0:root"),
    "names": (
        "two:3:nummod police:3:compound men:4:nsubj throw:0:root balls:4:obj",
        "two:3:num police:3:nn men:4:nsubj throw:0:root balls:4:dobj",
    ),
    "clauses of nouns": (
        "man:0:root wearing:1:acl hats:2:obj who:5:nsubj runs:1:acl:relcl",
        "man:0:root wearing:1:partmod hats:2:dobj who:5:nsubj runs:1:rcmod",
    ),
    "passive": (
        "cats:3:nsubj:pass are:3:aux:pass seen:0:root",
        "cats:3:nsubjpass are:3:auxpass seen:0:root",
    ),
    "owners": ("man:3:nmod:poss 's:1:case hat:0:root", "man:3:poss 's:1:possessive hat:0:root"),
    "conjunctions": ("cats:0:root and:3:cc dogs:1:conj", "cats:0:root and:1:cc dogs:1:conj"),
    "a copula before a preposition": (
        "dog:4:nsubj is:4:cop near:4:case cat:0:root .:4:punct",
        "dog:2:nsubj is:0:root near:2:prep cat:3:pobj .:2:punct",
    ),
    "an infinitive, and a subtype without a name of its own": (
        "way:0:root to:3:mark run:1:acl here:3:advmod:lmod",
        "way:0:root to:3:mark run:1:infmod here:3:advmod",
    ),
    "an agent": (
        "seen:0:root by:1:agent dogs:2:pobj",
        "seen:0:root by:1:prep dogs:2:pobj",
    ),
    "datives": (
        "gives:0:root him:1:dative to:1:dative dogs:3:pobj",
        "gives:0:root him:1:iobj to:1:prep dogs:3:pobj",
    ),
}
CLEAR = {
    "names": "two:3:nummod police:3:compound men:4:nsubj throw:0:ROOT balls:4:dobj",
    "clauses of nouns": "man:0:ROOT wearing:1:acl hats:2:dobj who:5:nsubj runs:1:relcl",
    "owners": "man:3:poss 's:1:case hat:0:ROOT",
}


@pytest.mark.parametrize("name", SENTENCES)
def test_labels_become_stanfords(name: str) -> None:
    """From UD, ClearNLP, and Stanford's own, which stay as they are."""
    universal, stanford = SENTENCES[name]
    for given in (universal, stanford, CLEAR.get(name, universal)):
        told = said(relabel(tree(given), "stanford")).replace("ROOT", "root")
        assert told == said(tree(stanford)), given
        assert relabel(tree(given), "as-is") == tree(given)


# -- arcs --------------------------------------------------------------------------------------------------------------
DOG = "[/EN#1/animals a red dog] on [/EN#2/scene the grass] runs"
DOG_TREE = "a:3:det red:3:amod dog:7:nsubj on:6:case the:6:det grass:3:nmod runs:0:root"


def parsed(marked: str, words: str, scheme: LabelScheme = "stanford") -> ParsedCaption:
    (one,) = match_parses([caption_of(marked)], [parse_of(tree(words))], scheme).parsed
    return one


@pytest.mark.parametrize(
    ("scheme", "expected", "passed"),
    [
        ("stanford", "nsubj<runs det>a amod>red prep>on pobj<on det>the", 0),
        ("as-is", "nsubj<runs det>a amod>red case>on det>the", 2),
    ],
)
def test_the_arcs_of_a_sentence_parsed_by_hand(scheme, expected, passed):
    """`>`: the phrase is the head of the other word, `<`: its dependent."""
    arcs, told = arcs_of(parsed(DOG, DOG_TREE, scheme))
    sign = {"head": ">", "dependent": "<"}
    spans = [(one.example.text[one.start : one.stop], relation) for relation, one in arcs]
    shown = [f"{name}{sign[end]}{word}" for word, (name, end) in spans]
    assert shown == expected.split() and told["arcs_to_other_phrases"] == passed


def test_what_heads_are_asked_of_an_arc() -> None:
    asked = make_arc_questions([parsed(DOG, DOG_TREE)])
    (phrases,) = asked.phrases
    boxes = [one.example.gold_boxes.boxes[0, 0] for one in phrases if one.example.gold_boxes]
    assert boxes == [0, 0, 0, 0, 50, 50]
    named = [asked.relations[one.group] for one in phrases]
    assert asked.relations[0] == ("det", "head") and named[0] == ("nsubj", "dependent")
    assert all(TABLE_2[relation] == end for relation, end in named)


def test_a_phrase_of_several_heads_is_counted_and_left_out() -> None:
    one = parsed("he saw [/EN#1/x dogs run]", "he:2:nsubj saw:0:root dogs:2:obj run:2:xcomp")
    assert arcs_of(one) == ([], Counter(phrases_of_several_heads=1))
    assert make_arc_questions([one]).examples == []
    one = parsed("[/EN#3/x dogs] run", "dogs:2:nsubj run:0:root")
    assert arcs_of(one) == ([], Counter()), "nothing is asked for a phrase without a box"


def test_captions_find_their_parses_by_name_by_image_and_by_words() -> None:
    told = [caption_of("a dog", "1", 0), caption_of("a dog", "1", 1), caption_of("a cat", "2", 0)]
    told += [caption_of("A  dog", "3", 0), caption_of("a cow", "3", 1)]
    dog, cat = "a:2:det dog:0:root", "a:2:det cat:0:root"
    parses = [
        parse_of(tree(dog)),
        parse_of(tree("a:2:named dog:0:root"), id="1#1"),
        parse_of(tree("a:2:image cat:0:root"), image="2"),
        parse_of(tree(cat), image="3", where="f, line 9"),
        parse_of(tree(cat), id="3#1", where="f, line 12"),
        parse_of(tree("a:2:det pig:0:root"), id="12"),
        parse_of(tree(cat), image="99"),
    ]
    found = match_parses(told, parses, "as-is")
    assert [one.words[0].relation for one in found.parsed] == ["det", "named", "image", "det"]
    assert told[4].id not in {one.caption.id for one in found.parsed}
    assert sorted(found.unaligned) == ["f, line 12: 'a cat'", "f, line 9: 'a cat'"]


# -- parsers that may be installed -------------------------------------------------------------------------------------
def _spacy(parsed: bool = True) -> SimpleNamespace:
    """A fake spaCy that gives DOG_TREE for any text, twice, with white space in between."""

    class Doc(list[Any]):
        def has_annotation(self, name: str) -> bool:
            return parsed and name == "DEP"

    def doc(text: str) -> Doc:
        words = Doc()
        for before in (0, 8):
            for number, word in enumerate(tree(DOG_TREE)):
                head = number if word.head == ROOT else word.head
                own = {"text": word.form, "dep_": word.relation, "pos_": "", "tag_": "X"}
                words.append(SimpleNamespace(**own, i=before + number, to=before + head))
            if not before:
                # spaCy's parser may attach white space to a word, and a word to white space.
                words.append(SimpleNamespace(text=" \n", dep_="", i=7, to=6))
        words[9].to = 7
        for word in words:
            word.head = words[word.to]
        return words

    def load(name: str) -> SimpleNamespace:
        if name != "en_core_web_sm":
            raise OSError(f"[E050] Can't find model '{name}'.\nmore")
        return SimpleNamespace(pipe=lambda texts: map(doc, texts))

    return SimpleNamespace(load=load)


def test_spacy_is_asked_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", _spacy())
    (one,) = parse_texts("spacy", ["any"])
    assert said(one.words[:7]) == DOG_TREE and one.words[0].tag == "X"
    rest = said(one.words[7:9] + one.words[13:])
    assert rest == "a:10:det red:7:amod runs:7:parataxis"
    for module, parser, told in (
        (_spacy(), "spacy:xx", r"parses spacy:xx \(OSError: .*Can't find model 'xx'"),
        (_spacy(parsed=False), "spacy", "this pipeline has no parser"),
        (None, "spacy", "; install it, or pass a CoNLL-U"),
    ):
        monkeypatch.setitem(sys.modules, "spacy", module)
        with pytest.raises(InputError, match=told):
            parse_texts(parser, ["any"])


# -- the world ---------------------------------------------------------------------------------------------------------
def test_the_world_tells_what_its_captions_are(tmp_path: Path) -> None:
    world = World(WorldConfig(scenes=0, dev_scenes=0))
    write_tasks(world, tmp_path, 60, 20, ("flickr30k",))
    folder = tmp_path / "flickr30k"
    parses = read_parses(folder / "parses.conllu")
    told = [one for split in ("train", "val", "test") for one in read_captions(folder, split)]
    found = match_parses(told, parses, "as-is")
    assert len(found.parsed) == len(told) == len(parses)
    asked = make_arc_questions(found.parsed)
    assert not asked.skip_counts["phrases_of_several_heads"]
    names = {name for name, _ in asked.relations}
    assert names == {"amod", "case", "cc", "cop", "det", "nsubj", "obj", "punct"}
    paper = make_arc_questions(match_parses(told, parses, "stanford").parsed)
    in_table = {name for name, end in paper.relations if TABLE_2.get(name) == end}
    assert in_table == {"det", "amod", "nsubj", "pobj", "dobj"}
    for one in found.parsed:
        for phrase in one.caption.phrases:
            inside = one.spans[(one.spans[:, 0] >= phrase.start) & (one.spans[:, 1] <= phrase.stop)]
            assert inside[0, 0] == phrase.start and inside[-1, 1] == phrase.stop
            assert one.words[int(one.spans.tolist().index(inside[-1].tolist()))].tag == "NOUN"


# -- the command -------------------------------------------------------------------------------------------------------
CAPTIONS = [
    (
        "a [/EN#1/people wet dog] near [/EN#2/other 3 trees]",
        "a:3:det wet:3:amod dog:0:root near:6:case 3:6:nummod trees:3:nmod",
    ),
    ("[/EN#1/people two cats] wait", "two:2:nummod cats:3:nsubj wait:0:root"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two captions of each of three images, their parses, a store of their regions and a model."""
    folder = tmp_path_factory.mktemp("syntax")
    entities(folder, [text for text, _ in CAPTIONS])
    lines = [line for _, words in CAPTIONS for line in format_conllu(parse_of(tree(words)))]
    put(folder / "parses.conllu", "\n".join(lines).replace("# sent_id = \n", ""))
    return folder


def run(place: Path, out: Path, *more: str) -> int:
    usual = {"model": "model", "data": "data", "regions": "store", "parses": "parses.conllu"}
    given = " ".join(more)
    flags = [
        f"--{flag}={place}/{name}" for flag, name in usual.items() if f"--{flag}=" not in given
    ]
    return main(["syntax", *flags, "--cpu", "--out", str(out), *more])


def test_the_command_tells_every_relation(place: Path, tmp_path: Path, capsys: Any) -> None:
    assert run(place, tmp_path / "out", "--min-arcs=3", "--min-region-attention=0.1") == 0
    shown = capsys.readouterr().out
    assert "relations of the paper's Table 2" in shown and "heads count from 0" in shown
    told = json.loads((tmp_path / "out/result.json").read_text())
    counts = told["counts"]
    assert (counts["captions"], counts["parsed"], counts["asked"]) == (6, 6, 21)
    named = {f"{one['relation']} {one['phrase_is']}": one for one in told["relations"]}
    arcs = {"num head": 6, "det head": 3, "amod head": 3, "prep head": 3}
    arcs |= {"pobj dependent": 3, "nsubj dependent": 3}
    assert {name: one["arcs"] for name, one in named.items()} == arcs
    assert all(one["table_2"] for one in told["relations"])
    # The first region, the most confident, matches the dog and the cats; the trees have another.
    confidences = {"det head": 100, "num head": 50, "pobj dependent": 0}
    assert {name: named[name]["confidence"]["value"] for name in confidences} == confidences
    assert named["pobj dependent"]["upper_bound"]["value"] == 100
    places = [(layer, head) for layer in range(2) for head in range(2)]
    assert all([(h["layer"], h["head"]) for h in one["heads"]] == places for one in named.values())
    few = ["--min-arcs=4", "--no-shuffled-images-control", "--min-region-attention=1"]
    assert run(place, tmp_path / "few", *few) == 0
    told = json.loads((tmp_path / "few/result.json").read_text())
    assert [one["relation"] for one in told["relations"]] == ["num"]
    assert sum(told["rare"].values()) == 15 and told["rare"]["pobj, phrase is dependent"] == 3
    assert told["relations"][0]["best"] is None and "none" in capsys.readouterr().out


def test_a_model_of_two_streams_is_asked(place: Path, tmp_path: Path) -> None:
    """LXMERT: text over regions is scored."""
    words = toys.bert_words()
    homes.home(place / "lxmert", toys.lxmert(words), words)
    flags = [f"--model={place}/lxmert", "--min-region-attention=0", "--batch=2"]
    assert run(place, tmp_path / "one", *flags, "--min-arcs=1") == 0
    told = json.loads((tmp_path / "one/result.json").read_text())
    assert told["counts"]["asked"] == 21
    for one in told["relations"]:  # its two layers of text over regions
        heads = [(row["layer"], row["head"]) for row in one["heads"]]
        assert heads == [(layer, head) for layer in (0, 1) for head in (0, 1)]
        # Words of LXMERT's cross-attention attend to regions only.
        assert {row["region_share"] for row in one["heads"]} == {100.0}
    data = [f"--data={place}/data", f"--regions={place}/store", "--cpu"]
    assert main(["heads", *flags, *data, f"--out={tmp_path}/heads"]) == 0
    assert json.loads((tmp_path / "heads/result.json").read_text())["counts"]["asked"] == 9


def test_a_parser_is_asked_once_and_what_it_said_is_kept(place, tmp_path, monkeypatch):
    plain = [caption.text for caption in read_captions(place / "data", "val")]
    words = {text: tree(parse) for text, (_, parse) in zip(plain, CAPTIONS, strict=False)}
    asked = []

    def parses(parser: str, texts: Sequence[str]) -> list[Parse]:
        asked.append(parser)
        return [parse_of(words[text]) for text in texts]

    monkeypatch.setattr("groundling.studies.attention.syntax.parse_texts", parses)
    few = ["--parses=spacy:mine", "--min-arcs=1", "--no-shuffled-images-control"]
    assert run(place, tmp_path / "out", *few) == 0
    assert asked == ["spacy:mine"]
    kept = read_parses(tmp_path / "out/parses.conllu")
    assert [one.id for one in kept] == [f"{n}#{k}" for n in range(3) for k in range(2)]
    assert json.loads((tmp_path / "out/result.json").read_text())["counts"]["asked"] == 21
    path = tmp_path / "captions.txt"
    assert main(["data", "captions", f"{place}/data", "--out", str(path)]) == 0
    assert path.read_text().splitlines() == plain


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--parses=gold", "parses.conllu: no such file"),
        ("--parses=nowhere.conllu", "nowhere.conllu: no such file"),
        ("--parses={place}/data", "no *.conllu in this folder"),
        ("--parses={place}/other.conllu", "no sentence has the words of a caption"),
        (
            "--parses={place}/one.conllu",
            "1 image, and the control with other images needs at least",
        ),
        ("--min-arcs=7", "no relation has 7 arcs at a phrase with boxes, the most frequent has 6"),
    ],
)
def test_mistakes_are_one_line(place, tmp_path, capsys, flag, told):
    put(place / "other.conllu", "\n".join(format_conllu(parse_of(tree(DOG_TREE)))))
    first = format_conllu(replace(parse_of(tree(CAPTIONS[0][1])), id="0#0"))
    put(place / "one.conllu", "\n".join(first))
    assert run(place, tmp_path / "out", flag.format(place=place)) == 2
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1
