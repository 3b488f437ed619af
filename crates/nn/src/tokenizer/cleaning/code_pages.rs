//! Single-byte encodings, as the mistakes that make mojibake use them.
//!
//! The tables are facts of the encodings: the Unicode consortium's mappings, as Python's codecs have them.

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// In a table: no character is assigned, so the byte stands for the character of its own number, as browsers read it.
const UNASSIGNED: char = '\u{fffd}';
/// What a lossy decoder leaves in place of a byte that it cannot read.
const REPLACEMENT: char = '\u{fffd}';
/// "Substitute", the byte that stands for [`REPLACEMENT`] in the code pages of Windows.
pub(super) const SUBSTITUTE: u8 = 0x1a;

/// A single-byte encoding that agrees with ASCII below 0x80.
#[derive(Debug)]
pub(super) struct CodePage {
    pub(super) family: Family,
    /// The characters of the bytes from 0x80 on.
    pub(super) upper: [char; 128],
    bytes: BTreeMap<char, u8>,
}

/// What an encoding is related to, as far as repairs differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Latin1,
    /// A code page of Windows. Text is often read with one of them after another decoder has lost bytes.
    Windows,
    MacRoman,
    /// ISO 8859-2 and code page 437.
    Other,
}

/// The encodings that UTF-8 is most often wrongly decoded with, the likeliest first.
pub(super) static CODE_PAGES: LazyLock<[CodePage; 10]> = LazyLock::new(|| {
    [
        CodePage::new(Family::Latin1, LATIN_1),
        CodePage::new(Family::Windows, WINDOWS_1252),
        CodePage::new(Family::Windows, WINDOWS_1251),
        CodePage::new(Family::Windows, WINDOWS_1250),
        CodePage::new(Family::Windows, WINDOWS_1253),
        CodePage::new(Family::Windows, WINDOWS_1254),
        CodePage::new(Family::Windows, WINDOWS_1257),
        CodePage::new(Family::Other, ISO_8859_2),
        CodePage::new(Family::MacRoman, MAC_ROMAN),
        CodePage::new(Family::Other, CP437),
    ]
});

/// The character that windows-1252 has for a number from 0x80 to 0x9f, where Latin-1 has control characters; any other
/// character as it is. Five of the numbers are unassigned and stay.
pub(super) fn from_windows_1252(character: char) -> char {
    static UPPER: LazyLock<[char; 128]> = LazyLock::new(|| upper_half(WINDOWS_1252));
    match character {
        '\u{80}'..='\u{9f}' => UPPER[character as usize - 0x80],
        other => other,
    }
}

impl CodePage {
    fn new(family: Family, table: &str) -> Self {
        let upper = upper_half(table);
        let bytes = upper.into_iter().zip(0x80..=0xff).collect();
        Self { family, upper, bytes }
    }

    /// The bytes that this encoding decodes to `text`; `None` if there are none.
    pub(super) fn encode(&self, text: &str) -> Option<Vec<u8>> {
        let lossy = self.family == Family::Windows;
        let byte = |character: char| match character {
            REPLACEMENT if lossy => Some(SUBSTITUTE),
            '\u{1a}' if lossy => None,
            '\0'..='\u{7f}' => u8::try_from(character).ok(),
            _ => self.bytes.get(&character).copied(),
        };
        text.chars().map(byte).collect()
    }
}

/// The characters of the bytes from 0x80 on.
fn upper_half(table: &str) -> [char; 128] {
    let mut table = table.chars();
    std::array::from_fn(|index| match table.next() {
        Some(character) if character != UNASSIGNED => character,
        _ => char::from(0x80 + index as u8),
    })
}

/// Every byte stands for the character of its own number.
const LATIN_1: &str = "";

const WINDOWS_1252: &str = "\
    €�‚ƒ„…†‡ˆ‰Š‹Œ�Ž�\
    �‘’“”•–—˜™š›œ�žŸ\
    \u{a0}¡¢£¤¥¦§¨©ª«¬\u{ad}®¯\
    °±²³´µ¶·¸¹º»¼½¾¿\
    ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏ\
    ÐÑÒÓÔÕÖ×ØÙÚÛÜÝÞß\
    àáâãäåæçèéêëìíîï\
    ðñòóôõö÷øùúûüýþÿ";

const WINDOWS_1251: &str = "\
    ЂЃ‚ѓ„…†‡€‰Љ‹ЊЌЋЏ\
    ђ‘’“”•–—�™љ›њќћџ\
    \u{a0}ЎўЈ¤Ґ¦§Ё©Є«¬\u{ad}®Ї\
    °±Ііґµ¶·ё№є»јЅѕї\
    АБВГДЕЖЗИЙКЛМНОП\
    РСТУФХЦЧШЩЪЫЬЭЮЯ\
    абвгдежзийклмноп\
    рстуфхцчшщъыьэюя";

const WINDOWS_1250: &str = "\
    €�‚�„…†‡�‰Š‹ŚŤŽŹ\
    �‘’“”•–—�™š›śťžź\
    \u{a0}ˇ˘Ł¤Ą¦§¨©Ş«¬\u{ad}®Ż\
    °±˛ł´µ¶·¸ąş»Ľ˝ľż\
    ŔÁÂĂÄĹĆÇČÉĘËĚÍÎĎ\
    ĐŃŇÓÔŐÖ×ŘŮÚŰÜÝŢß\
    ŕáâăäĺćçčéęëěíîď\
    đńňóôőö÷řůúűüýţ˙";

const WINDOWS_1253: &str = "\
    €�‚ƒ„…†‡�‰�‹����\
    �‘’“”•–—�™�›����\
    \u{a0}΅Ά£¤¥¦§¨©�«¬\u{ad}®―\
    °±²³΄µ¶·ΈΉΊ»Ό½ΎΏ\
    ΐΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟ\
    ΠΡ�ΣΤΥΦΧΨΩΪΫάέήί\
    ΰαβγδεζηθικλμνξο\
    πρςστυφχψωϊϋόύώ�";

const WINDOWS_1254: &str = "\
    €�‚ƒ„…†‡ˆ‰Š‹Œ���\
    �‘’“”•–—˜™š›œ��Ÿ\
    \u{a0}¡¢£¤¥¦§¨©ª«¬\u{ad}®¯\
    °±²³´µ¶·¸¹º»¼½¾¿\
    ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏ\
    ĞÑÒÓÔÕÖ×ØÙÚÛÜİŞß\
    àáâãäåæçèéêëìíîï\
    ğñòóôõö÷øùúûüışÿ";

const WINDOWS_1257: &str = "\
    €�‚�„…†‡�‰�‹�¨ˇ¸\
    �‘’“”•–—�™�›�¯˛�\
    \u{a0}�¢£¤�¦§Ø©Ŗ«¬\u{ad}®Æ\
    °±²³´µ¶·ø¹ŗ»¼½¾æ\
    ĄĮĀĆÄÅĘĒČÉŹĖĢĶĪĻ\
    ŠŃŅÓŌÕÖ×ŲŁŚŪÜŻŽß\
    ąįāćäåęēčéźėģķīļ\
    šńņóōõö÷ųłśūüżž˙";

const ISO_8859_2: &str = "\
    ����������������\
    ����������������\
    \u{a0}Ą˘Ł¤ĽŚ§¨ŠŞŤŹ\u{ad}ŽŻ\
    °ą˛ł´ľśˇ¸šşťź˝žż\
    ŔÁÂĂÄĹĆÇČÉĘËĚÍÎĎ\
    ĐŃŇÓÔŐÖ×ŘŮÚŰÜÝŢß\
    ŕáâăäĺćçčéęëěíîď\
    đńňóôőö÷řůúűüýţ˙";

const MAC_ROMAN: &str = "\
    ÄÅÇÉÑÖÜáàâäãåçéè\
    êëíìîïñóòôöõúùûü\
    †°¢£§•¶ß®©™´¨≠ÆØ\
    ∞±≤≥¥µ∂∑∏π∫ªºΩæø\
    ¿¡¬√ƒ≈∆«»…\u{a0}ÀÃÕŒœ\
    –—“”‘’÷◊ÿŸ⁄€‹›ﬁﬂ\
    ‡·‚„‰ÂÊÁËÈÍÎÏÌÓÔ\
    \u{f8ff}ÒÚÛÙıˆ˜¯˘˙˚¸˝˛ˇ";

const CP437: &str = "\
    ÇüéâäàåçêëèïîìÄÅ\
    ÉæÆôöòûùÿÖÜ¢£¥₧ƒ\
    áíóúñÑªº¿⌐¬½¼¡«»\
    ░▒▓│┤╡╢╖╕╣║╗╝╜╛┐\
    └┴┬├─┼╞╟╚╔╩╦╠═╬╧\
    ╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀\
    αßΓπΣσµτΦΘΩδ∞φε∩\
    ≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";
