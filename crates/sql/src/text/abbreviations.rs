//! Names of time zones that are only letters, as PostgreSQL knows them.
//!
//! PostgreSQL lets some of them vary with the date; here each has the offset that is in force today.

/// Abbreviations of PostgreSQL's default set, and their offsets in seconds east of Greenwich.
#[rustfmt::skip]
pub(super) const ABBREVIATIONS: [(&str, i32); 195] = [
    ("acdt", 37800), ("acsst", 37800), ("acst", 34200), ("act", -18000), ("acwst", 31500), ("adt", -10800),
    ("aedt", 39600), ("aesst", 39600), ("aest", 36000), ("aft", 16200), ("akdt", -28800), ("akst", -32400),
    ("almst", 25200), ("almt", 21600), ("amst", 14400), ("amt", -14400), ("anast", 43200), ("anat", 43200),
    ("arst", -10800), ("art", -10800), ("ast", -14400), ("awsst", 32400), ("awst", 28800), ("azost", 0),
    ("azot", -3600), ("azst", 14400), ("azt", 14400), ("bdst", 7200), ("bdt", 21600), ("bnt", 28800), ("bort", 28800),
    ("bot", -14400), ("bra", -10800), ("brst", -7200), ("brt", -10800), ("bst", 3600), ("btt", 21600),
    ("cadt", 37800), ("cast", 34200), ("cct", 28800), ("cdt", -18000), ("cest", 7200), ("cet", 3600),
    ("cetdst", 7200), ("chadt", 49500), ("chast", 45900), ("chut", 36000), ("ckt", -36000), ("clst", -10800),
    ("clt", -10800), ("cot", -18000), ("cst", -21600), ("cxt", 25200), ("davt", 25200), ("ddut", 36000),
    ("easst", -18000), ("east", -18000), ("eat", 10800), ("edt", -14400), ("eest", 10800), ("eet", 7200),
    ("eetdst", 10800), ("egst", 0), ("egt", -3600), ("est", -18000), ("fet", 10800), ("fjst", 46800), ("fjt", 43200),
    ("fkst", -10800), ("fkt", -10800), ("fnst", -3600), ("fnt", -7200), ("galt", -21600), ("gamt", -32400),
    ("gest", 14400), ("get", 14400), ("gft", -10800), ("gilt", 43200), ("gmt", 0), ("gyt", -14400), ("hkt", 28800),
    ("hst", -36000), ("ict", 25200), ("idt", 10800), ("iot", 21600), ("irkst", 28800), ("irkt", 28800),
    ("irt", 12600), ("ist", 7200), ("jayt", 32400), ("jst", 32400), ("kdt", 36000), ("kgst", 21600), ("kgt", 21600),
    ("kost", 39600), ("krast", 25200), ("krat", 25200), ("kst", 32400), ("lhdt", 39600), ("lhst", 37800),
    ("ligt", 36000), ("lint", 50400), ("lkt", 19800), ("magst", 39600), ("magt", 39600), ("mart", -34200),
    ("mawt", 18000), ("mdt", -21600), ("mest", 7200), ("mesz", 7200), ("met", 3600), ("metdst", 7200), ("mez", 3600),
    ("mht", 43200), ("mmt", 23400), ("mpt", 36000), ("msd", 14400), ("msk", 10800), ("mst", -25200), ("must", 18000),
    ("mut", 14400), ("mvt", 18000), ("myt", 28800), ("ndt", -9000), ("nft", -12600), ("novst", 25200),
    ("novt", 25200), ("npt", 20700), ("nst", -12600), ("nut", -39600), ("nzdt", 46800), ("nzst", 43200),
    ("nzt", 43200), ("omsst", 21600), ("omst", 21600), ("pdt", -25200), ("pet", -18000), ("petst", 43200),
    ("pett", 43200), ("pgt", 36000), ("pht", 28800), ("pkst", 21600), ("pkt", 18000), ("pmdt", -7200),
    ("pmst", -10800), ("pont", 39600), ("pst", -28800), ("pwt", 32400), ("pyst", -10800), ("pyt", -10800),
    ("ret", 14400), ("sadt", 37800), ("sast", 7200), ("sct", 14400), ("sgt", 28800), ("taht", -36000), ("tft", 18000),
    ("tjt", 18000), ("tkt", 46800), ("tmt", 18000), ("tot", 46800), ("trut", 36000), ("tvt", 43200), ("uct", 0),
    ("ulast", 32400), ("ulat", 28800), ("ut", 0), ("utc", 0), ("uyst", -7200), ("uyt", -10800), ("uzst", 21600),
    ("uzt", 18000), ("vet", -14400), ("vlast", 36000), ("vlat", 36000), ("volt", 10800), ("vut", 39600),
    ("wadt", 28800), ("wakt", 43200), ("wast", 25200), ("wat", 3600), ("wdt", 32400), ("wet", 0), ("wetdst", 3600),
    ("wft", 43200), ("wgst", -7200), ("wgt", -10800), ("xjt", 21600), ("yakst", 32400), ("yakt", 32400),
    ("yapt", 36000), ("yekst", 21600), ("yekt", 18000), ("z", 0), ("zulu", 0),
];
