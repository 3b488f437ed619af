//! How OpenAI's CLIP and open_clip clean a text before they cut it into words.

mod code_pages;
mod fix_text;
mod html;
mod mojibake;
mod suspicion;

use fix_text::fix_text;

/// `whitespace_clean(basic_clean(text)).lower()` of open_clip 3.3: mistakes repaired by ftfy, character references
/// replaced twice over, words separated by single spaces, small letters.
///
/// Small letters follow the whole word, so a capital sigma becomes `ς` at its end.
pub(super) fn clean(text: &str) -> String {
    let text = html::unescape(&html::unescape(&fix_text(text)));
    let words: Vec<&str> = text.split(is_space).filter(|word| !word.is_empty()).collect();
    words.join(" ").to_lowercase()
}

/// What `str.split` of Python splits at: white space of Unicode, and the four separators of ASCII.
fn is_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}
