"""The layouts of public data sets as they are downloaded: which field of a row has what.

Each entry has the keys of a source that its layout fills in, and where the layout is described. A key that the source
writes itself goes first; `language_key: null` keeps the documents of all languages.
"""

from __future__ import annotations

from typing import Literal

LayoutName = Literal[
    "common_corpus", "common_crawl", "culturax", "fineweb2", "gptnl", "hplt", "madlad400", "mc4", "oscar"
]

LAYOUTS: dict[LayoutName, dict[str, str]] = {
    # huggingface.co/datasets/PleIAs/common_corpus and arXiv 2506.01732: Parquet; identifier, collection, open_type,
    # license, date (a year), title, creator, language (an English name), language_type, word_count, token_count, text
    "common_corpus": {
        "id_key": "identifier",
        "holder_key": "creator",
        "language_key": "language",
        "license_key": "license",
    },
    # commoncrawl.org/get-started (WET): WARC conversion records; languages are ISO 639-3, the most frequent first
    "common_crawl": {"language_key": "WARC-Identified-Content-Language"},
    # huggingface.co/datasets/uonlp/CulturaX and arXiv 2309.09400: Parquet by language; text, timestamp, url, source
    "culturax": {"date_key": "timestamp"},
    # huggingface.co/datasets/HuggingFaceFW/fineweb-2: Parquet by language; text, id, dump, url, date, file_path,
    # language (ISO 639-3), language_score, language_script, minhash_cluster_size, top_langs
    "fineweb2": {"language_key": "language"},
    # github.com/GPT-NL/data-curation-pipeline (DATASET_DEPLOYMENT.md, PP03) and arXiv 2604.00920: Parquet; id, text,
    # title, source, author, license, dataset_name, dataset_url, language, language_score, n_char, n_non_symbol_words,
    # avg_word_length. `dataset_url` is that of a collection, so it is not the address of a document
    "gptnl": {"holder_key": "author", "language_key": "language", "license_key": "license"},
    # hplt-project.org/datasets (2.0 and 3.0) and arXiv 2503.10267: JSON lines with zstd by language; id, f, o, s, rs, u
    # (address), c, ts (time of the crawl), collection, lang (labels such as nld_Latn, the most probable first), prob,
    # text, seg_langs and more
    "hplt": {"url_key": "u", "date_key": "ts", "language_key": "lang"},
    # huggingface.co/datasets/allenai/MADLAD-400 and arXiv 2309.04662: JSON lines with gzip by language; text
    "madlad400": {},
    # huggingface.co/datasets/allenai/c4 (multilingual): .json.gz with an object per line; text, timestamp, url
    "mc4": {"date_key": "timestamp"},
    # oscar-project.github.io/documentation (22.01 to 23.01): JSON lines by language; content, warc_headers and metadata
    "oscar": {
        "text_key": "content",
        "id_key": "warc_headers.warc-record-id",
        "url_key": "warc_headers.warc-target-uri",
        "date_key": "warc_headers.warc-date",
        "language_key": "metadata.identification.label",
    },
}
