//! Values as Avro and Protobuf write them.

use crate::room::{Room, Stop, Text, VARINT, write_varint, zigzag};

/// The bytes before others: none, or how many they are, as a varint, of Avro's zigzag form or plain.
#[derive(Clone, Copy)]
pub enum Length {
    Absent,
    Zigzag,
    Plain,
}

impl Length {
    #[inline]
    fn of(self, size: usize) -> u64 {
        match self {
            Length::Zigzag => zigzag(size as i64),
            Length::Absent | Length::Plain => size as u64,
        }
    }
}

/// Write a text behind its length.
#[inline]
pub fn put_bytes(room: &mut Room, text: Text, length: Length) -> Result<(), Stop> {
    if !matches!(length, Length::Absent) {
        room.put_varint(length.of(text.size()))?;
    }
    room.put_text(text)
}

/// Write the bytes of a row, where every row has `size` of them.
#[inline]
pub fn put_fixed(room: &mut Room, data: &[u8], size: usize, row: usize) -> Result<(), Stop> {
    let tail = row
        .checked_mul(size)
        .and_then(|start| data.get(start..))
        .ok_or(Stop::OutOfBounds)?;
    if tail.len() < size {
        return Err(Stop::OutOfBounds);
    }
    room.put_text(Text::of(tail, size))
}

/// Write a number as the bytes of Java's `BigInteger.toByteArray`, behind how many these are: the highest first, with a sign, as few as possible.
#[inline]
pub fn put_unscaled(room: &mut Room, number: i64, length: Length) -> Result<(), Stop> {
    // Bits that say more than the sign, and the sign.
    let bits = 65 - (number ^ (number >> 63)).leading_zeros() as usize;
    let size = bits.div_ceil(8);
    let bytes = (number << (64 - 8 * size)).to_be_bytes();
    put_bytes(room, Text::of(&bytes, size), length)
}

/// Write what `put` writes behind its length.
#[inline]
pub fn put_with_length(
    room: &mut Room,
    length: Length,
    put: impl FnOnce(&mut Room) -> Result<(), Stop>,
) -> Result<(), Stop> {
    if matches!(length, Length::Absent) {
        return put(room);
    }
    let start = room.end();
    room.put(&[0])?;
    put(room)?;
    let mut number = [0; VARINT];
    let size = write_varint(&mut number, 0, length.of(room.end() - start - 1));
    room.replace_byte(start, &number[..size])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(put: impl FnOnce(&mut Room) -> Result<(), Stop>) -> Vec<u8> {
        let mut bytes = [0; 1024];
        let mut room = Room::new(&mut bytes, 0);
        put(&mut room).unwrap();
        let end = room.end();
        bytes[..end].to_vec()
    }

    #[test]
    fn unscaled_numbers_have_as_few_bytes_as_their_sign_allows() {
        for (number, expected) in [
            (0, vec![0]),
            (127, vec![127]),
            (128, vec![0, 128]),
            (-128, vec![128]),
            (-129, vec![0xFF, 0x7F]),
            (i64::MAX, i64::MAX.to_be_bytes().to_vec()),
            (i64::MIN, i64::MIN.to_be_bytes().to_vec()),
        ] {
            assert_eq!(
                bytes(|room| put_unscaled(room, number, Length::Absent)),
                expected
            );
        }
    }

    #[test]
    fn a_length_of_two_bytes_moves_what_it_precedes() {
        let long = [7; 300];
        let actual = bytes(|room| put_with_length(room, Length::Plain, |room| room.put(&long)));
        assert_eq!(actual, [[0xAC, 0x02].as_slice(), &long].concat());
        let actual = bytes(|room| put_with_length(room, Length::Zigzag, |room| room.put(&[1, 2])));
        assert_eq!(actual, [4, 1, 2]);
    }

    #[test]
    fn a_length_without_room_is_no_panic() {
        let mut bytes = [0; 301];
        let mut room = Room::new(&mut bytes, 0);
        let actual = put_with_length(&mut room, Length::Plain, |room| room.put(&[7; 300]));
        assert_eq!(actual, Err(Stop::Full));
    }
}
