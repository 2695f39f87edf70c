//! Strings as JSON, without their quotes.

use crate::room::{Room, Stop, Texts};

/// Write a string, with escapes where it needs them.
#[inline]
pub fn put_string(room: &mut Room, texts: Texts, row: usize) -> Result<(), Stop> {
    let text = texts.get(row)?;
    if is_plain(text.bytes()) {
        room.put_text(text)
    } else {
        put_escaped(room, text.bytes())
    }
}

#[inline]
fn is_special(byte: u8) -> bool {
    (byte < 32) | (byte == b'"') | (byte == b'\\')
}

#[inline]
fn has_special<const N: usize>(block: &[u8; N]) -> bool {
    // Without a branch in it, a block is compared at once.
    block
        .iter()
        .fold(false, |any, &byte| any | is_special(byte))
}

/// Whether a text has neither control characters nor quotes nor backslashes.
#[inline]
fn is_plain(text: &[u8]) -> bool {
    let (blocks, end) = text.as_chunks::<16>();
    if blocks.iter().any(has_special) {
        return false;
    }
    // The last block may overlap the one before.
    match (
        text.last_chunk::<16>(),
        end.last_chunk::<8>(),
        end.first_chunk::<8>(),
    ) {
        (Some(last), ..) => !has_special(last),
        (None, Some(last), Some(first)) => !has_special(first) && !has_special(last),
        _ => !end.iter().copied().any(is_special),
    }
}

#[cold]
fn put_escaped(room: &mut Room, text: &[u8]) -> Result<(), Stop> {
    for run in text.split_inclusive(|&byte| is_special(byte)) {
        match run {
            [plain @ .., special] if is_special(*special) => {
                room.put(plain)?;
                put_escape(room, *special)?;
            }
            plain => room.put(plain)?,
        }
    }
    Ok(())
}

fn put_escape(room: &mut Room, byte: u8) -> Result<(), Stop> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let short = match byte {
        8 => b'b',
        b'\t' => b't',
        b'\n' => b'n',
        12 => b'f',
        b'\r' => b'r',
        32.. => byte,
        _ => {
            return room.put(&[
                b'\\',
                b'u',
                b'0',
                b'0',
                b'0' + (byte >> 4),
                DIGITS[usize::from(byte & 15)],
            ]);
        }
    };
    room.put(&[b'\\', short])
}
