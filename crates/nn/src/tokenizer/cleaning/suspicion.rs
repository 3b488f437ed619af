//! Neighbours that real text hardly ever has and mojibake has often: `ftfy.badness`.
//!
//! The classes and rules are those of ftfy 6.3.1, Copyright 2023 Robyn Speer, Apache License 2.0.

use std::sync::LazyLock;

use regex::Regex;

/// Whether a text looks as if it had been decoded with the wrong encoding.
pub(super) fn is_suspicious(text: &str) -> bool {
    static SUSPICIOUS: LazyLock<Regex> = LazyLock::new(|| Regex::new(&pattern()).expect("a valid pattern"));
    SUSPICIOUS.is_match(text)
}

/// The rules, one a line. Each is a sequence of character classes.
fn pattern() -> String {
    // Common in text of every kind.
    let common = r"\xa0\xad·´–—―…’";
    // The control characters of Latin-1, which nothing uses.
    let c1 = r"\x80-\x9f";
    // Hardly used on purpose.
    let bad = "¦¤¨¬¯¸ƒˆˇ˘˛˜†‡‰⌐◊\u{fffd}ªº";
    let law = "¶§";
    let currency = "¢£¥₧€";
    // The private-use character is the apple of Mac OS Roman.
    let opening = "¡«¿©΄΅‘‚“„•‹\u{f8ff}";
    let closing = "®»˝”›™";
    let numeric = "²³¹±¼½¾×µ÷⁄∂∆∏∑√∞∩∫≈≠≡≤≥№";
    // Letters that faces are drawn with stand in odd places on purpose, so they are not among the accented ones.
    let faces = "Ò-ÖÙ-Üò-öø-üŐŌŪŲ°";
    let upper_accented = "À-ÑØÜÝĂĀĄĆČĎĐĘĚĒĖĞĢİĪĶĹĽŁĻŃŇŅŒŘŚŞŠŢŤŮŰŸŹŻŽҐ";
    let lower_accented = "ßà-ñăąāćčďđęěēėğģįīķĺľłļœŕśşšťüźżžґﬁﬂ";
    // Letters of other alphabets that end words, where the rules for accented ones would misjudge them.
    let upper_common = "ÞΑ-ΩΆΈΉΊΌΎΏΪΫЁ-Я";
    let lower_common = "α-ωάέήίΰа-џ";
    // Without the plain horizontal line, which faces have.
    let lines = "│┌┐┘├┤┬┼═-╬▀▄█▌▐░▒▓";
    // As Python has them: no combining marks, but the separators of ASCII.
    let word = r"\p{L}\p{N}_";
    let space = r"\s\x1c-\x1f";

    // Arabic read as windows-1252 has common characters in it, so its rule asks for two pairs.
    let arabic = format!("[ØÙ][{common}{currency}{bad}{numeric}{opening}ŸŠ®°µ»]");
    let rules = [
        format!("[{c1}]"),
        format!("[{bad}{lower_accented}{upper_accented}{lines}{opening}{closing}{currency}{numeric}{law}][{bad}]"),
        format!("[a-zA-Z][{lower_common}{upper_common}][{bad}]"),
        format!("[{bad}][{lower_accented}{upper_accented}{lines}{opening}{closing}{currency}{numeric}{law}]"),
        format!("[{lower_accented}{lower_common}{lines}{closing}{currency}{numeric}][{upper_accented}]"),
        format!("[{lines}{closing}{currency}{numeric}][{lower_accented}]"),
        format!("[{lower_accented}{lines}{closing}][{currency}]"),
        format!("[{space}][{upper_accented}][{currency}]"),
        format!("[{upper_accented}{lines}][{numeric}{law}]"),
        format!("[{lower_accented}{upper_accented}{lines}{currency}{closing}][{opening}][{numeric}]"),
        format!("[{lower_accented}{upper_accented}{currency}{numeric}{lines}{law}][{closing}][{opening}]"),
        format!("[{currency}{numeric}{lines}][{opening}]"),
        format!("[a-z][{upper_accented}][{opening}{currency}]"),
        format!("[{lines}][{faces}]"),
        format!("[{lower_accented}{upper_accented}{currency}{numeric}{opening}{closing}{law}][{lines}]"),
        format!("[{lines}][{closing}]"),
        format!("[{lower_accented}{upper_accented}][{opening}{closing}][{word}]"),
        "[Œœ][^A-Za-z]".to_owned(),
        format!("[{upper_accented}]°"),
        // Latin letters, Greek and Cyrillic read as windows-1252.
        format!(r"[ÂÃÎÐ][€œŠš¢£Ÿž\xa0\xad®©°·»{opening}{closing}–—´]"),
        "×[²³]".to_owned(),
        format!("{arabic}{arabic}"),
        // Alphabets of South Asia read as windows-1252.
        "à[²µ¹¼½¾]".to_owned(),
        // Read as Mac OS Roman.
        "√[±∂†≠®™´≤≥¥µø]".to_owned(),
        "≈[°¢]".to_owned(),
        "‚Ä[ìîïòôúùû†°¢π]".to_owned(),
        "‚[âó][àä°ê]".to_owned(),
        // Punctuation, letters and twice-read text read as windows-1251.
        "вЂ".to_owned(),
        format!("[ВГРС][{c1}{bad}{opening}{closing}{currency}°µ][ВГРС]"),
        "ГўВЂВ.[A-Za-z ]".to_owned(),
        // `à`, `á` and the no-break space.
        r"Ã[\xa0¡]".to_owned(),
        format!("[a-z][{space}]?[ÃÂ] "),
        "^[ÃÂ] ".to_owned(),
        format!("[a-z.,?!{closing}]Â[ {opening}{closing}]"),
        // Read as windows-1253.
        r"β€[™\xa0Ά\xad®°]".to_owned(),
        format!("[ΒΓΞΟ][{c1}{bad}{opening}{closing}{currency}°][ΒΓΞΟ]"),
        // Read as windows-1257.
        "ā€".to_owned(),
    ];
    rules.join("|")
}
