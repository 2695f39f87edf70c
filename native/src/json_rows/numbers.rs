//! Numbers as text.

use crate::room::{Room, Stop, Text};

const SHORT: u64 = 100_000_000;
const ZEROS: u64 = u64::from_le_bytes(*b"00000000");
const EXACT_BELOW: f64 = 1e15;
/// Digits after the point of a decimal, at most.
pub const LARGEST_SCALE: usize = 38;

/// The digits of a number below 10**8, the first one in the lowest byte. They are computed side by side in a word.
#[inline]
fn digits(number: u64) -> u64 {
    let halves = (number / 10_000) | (number % 10_000) << 32;
    let hundreds = ((halves * 10_486) >> 20) & 0x7F_0000_007F;
    let pairs = hundreds | (halves - 100 * hundreds) << 16;
    let tens = ((pairs * 103) >> 10) & 0x000F_000F_000F_000F;
    tens | (pairs - 10 * tens) << 8
}

/// The eight digits of a number below 10**8.
#[inline]
pub fn eight(number: u64) -> [u8; 8] {
    (digits(number) | ZEROS).to_le_bytes()
}

/// A number below 10**8 without leading zeros, and its size.
#[inline]
fn short(number: u64) -> ([u8; 8], usize) {
    let digits = digits(number);
    let zeros = (digits | 1 << 56).trailing_zeros() as usize / 8;
    (((digits | ZEROS) >> (8 * zeros)).to_le_bytes(), 8 - zeros)
}

/// Write a number without leading zeros. Returns its size, which is at most 20.
#[inline]
fn unsigned(out: &mut [u8; 24], number: u64) -> usize {
    let high = number / SHORT;
    let (text, mut size) = short(if high == 0 {
        number
    } else if high < SHORT {
        high
    } else {
        high / SHORT
    });
    out[..8].copy_from_slice(&text);
    if high >= SHORT {
        out[size..size + 8].copy_from_slice(&eight(high % SHORT));
        size += 8;
    }
    if high > 0 {
        out[size..size + 8].copy_from_slice(&eight(number % SHORT));
        size += 8;
    }
    size
}

/// Write a number with its sign. Returns its size.
#[inline]
fn signed(out: &mut [u8; 32], negative: bool, number: u64) -> usize {
    let sign = usize::from(negative);
    out[0] = b'-';
    sign + out[sign..]
        .first_chunk_mut()
        .map_or(0, |out| unsigned(out, number))
}

/// Write an integer that is not negative.
#[inline]
pub fn put_unsigned(room: &mut Room, number: u64) -> Result<(), Stop> {
    room.put_short(|out| unsigned(out, number))
}

/// Write an integer.
#[inline]
pub fn put_integer(room: &mut Room, number: i64) -> Result<(), Stop> {
    room.put_short(|out| signed(out, number < 0, number.unsigned_abs()))
}

/// The size of an integer as text.
#[inline]
pub fn integer_size(number: i64) -> usize {
    let digits = number.unsigned_abs().checked_ilog10().unwrap_or(0) as usize + 1;
    digits + usize::from(number < 0)
}

/// Write a number of at most three decimals, with one at least.
#[inline]
pub fn put_thousandths(room: &mut Room, value: f64) -> Result<(), Stop> {
    let number = rounded(value.abs() * 1000.0) as u64;
    let fraction = (number % 1000) as u16;
    let digits =
        [fraction / 100, fraction / 10 % 10, fraction % 10].map(|digit| b'0' + digit as u8);
    let size = if digits[2] != b'0' {
        4
    } else {
        2 + usize::from(digits[1] != b'0')
    };
    room.put_short(|out| signed(out, value.is_sign_negative(), number / 1000))?;
    room.put_short(|out| {
        *out = [b'.', digits[0], digits[1], digits[2]];
        size
    })
}

/// Write an unscaled number with a point before its last `scale` digits.
#[inline]
pub fn put_decimal(room: &mut Room, value: i64, scale: usize) -> Result<(), Stop> {
    if scale == 0 {
        return put_integer(room, value);
    }
    // As many bytes as a wide copy reads from any of its digits.
    let mut text = [0; 56];
    let size = text
        .first_chunk_mut()
        .map_or(0, |out| unsigned(out, value.unsigned_abs()));
    if value < 0 {
        room.put(b"-")?;
    }
    if size > scale {
        room.put_text(Text::of(&text, size - scale))?;
        room.put(b".")?;
        return room.put_text(Text::of(&text[size - scale..], scale));
    }
    room.put(b"0.")?;
    room.put_text(Text::of(&[b'0'; LARGEST_SCALE], scale - size))?;
    room.put_text(Text::of(&text, size))
}

/// A double below 2**51 to the nearest integer, ties to even. Larger ones stay large.
#[inline]
fn rounded(value: f64) -> f64 {
    // From here to its double, doubles are integers.
    const INTEGERS: f64 = 6_755_399_441_055_744.0;
    (value + INTEGERS) - INTEGERS
}

/// Whether a number has at most three decimals as its shortest text, and not more than 15 digits.
#[inline]
fn is_thousandths(value: f64) -> bool {
    let scaled = rounded(value * 1000.0);
    (scaled / 1000.0 == value) & (scaled.abs() < EXACT_BELOW)
}

/// Whether `is_thousandths` holds for all numbers that are not null.
pub fn are_thousandths(values: &[f64], nulls: Option<&[u8]>) -> bool {
    // Without a branch in it, a block of numbers is computed at once.
    const BLOCK: usize = 64;
    match nulls {
        None => values.chunks(BLOCK).all(|block| {
            block
                .iter()
                .fold(true, |all, &value| all & is_thousandths(value))
        }),
        Some(nulls) => values
            .chunks(BLOCK)
            .zip(nulls.chunks(BLOCK))
            .all(|(values, nulls)| {
                let both = values.iter().zip(nulls);
                both.fold(true, |all, (&value, &null)| {
                    all & (is_thousandths(value) | (null != 0))
                })
            }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(put: impl FnOnce(&mut Room) -> Result<(), Stop>) -> String {
        let mut bytes = [0; 128];
        let mut room = Room::new(&mut bytes, 0);
        put(&mut room).unwrap();
        let end = room.end();
        String::from_utf8(bytes[..end].to_vec()).unwrap()
    }

    #[test]
    fn integers_are_those_of_the_standard_library() {
        for power in 0..=19 {
            for step in [-1, 0, 1] {
                let number = 10_u64.pow(power).wrapping_add_signed(step);
                assert_eq!(text(|room| put_unsigned(room, number)), number.to_string());
                assert_eq!(
                    text(|room| put_integer(room, number as i64)),
                    (number as i64).to_string()
                );
            }
        }
        for number in [0, u64::MAX, i64::MIN as u64] {
            assert_eq!(text(|room| put_unsigned(room, number)), number.to_string());
            assert_eq!(
                text(|room| put_integer(room, number as i64)),
                (number as i64).to_string()
            );
        }
    }

    #[test]
    fn every_fraction_of_eight_digits() {
        for number in (0..SHORT).step_by(4_999) {
            assert_eq!(eight(number).as_slice(), format!("{number:08}").as_bytes());
        }
    }

    #[test]
    fn thousandths_are_the_shortest_texts() {
        for number in [
            0_i64,
            1,
            10,
            100,
            999,
            1000,
            1001,
            1010,
            123_456_789_012_345,
            999_999_999_999_999,
        ] {
            for value in [number as f64 / 1000.0, -(number as f64 / 1000.0)] {
                assert!(are_thousandths(&[value], None));
                assert_eq!(
                    text(|room| put_thousandths(room, value)),
                    format!("{value:?}")
                );
            }
        }
        assert!(!are_thousandths(&[1e300], None) && !are_thousandths(&[f64::NAN], None));
        assert!(!are_thousandths(&[0.0001], None) && are_thousandths(&[0.0001], Some(&[1])));
    }
}
