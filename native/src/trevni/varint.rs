//! Numbers of variable length: seven bits a byte, the lowest first; the high bit says that another byte follows.
//!
//! Eight bytes are loaded at once where there are as many, and their groups of seven bits are moved together in three steps.

use super::damage::Damage;

const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// A number in memory: an int, of not more than five bytes and 32 bits, or a long, of not more than ten bytes and 64 bits.
pub trait Integer: Copy {
    const BITS: u32;
    const LONGEST: usize;

    /// The number of a zigzag form with not more than `BITS` bits: 0, -1, 1, -2 for 0, 1, 2, 3.
    fn from_zigzag(zigzag: u64) -> Self;

    fn to_i64(self) -> i64;

    fn fits(zigzag: u64) -> bool {
        Self::BITS == 64 || zigzag >> Self::BITS == 0
    }
}

impl Integer for i64 {
    const BITS: u32 = 64;
    const LONGEST: usize = 10;

    #[inline]
    fn from_zigzag(zigzag: u64) -> Self {
        (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64)
    }

    #[inline]
    fn to_i64(self) -> i64 {
        self
    }
}

impl Integer for i32 {
    const BITS: u32 = 32;
    const LONGEST: usize = 5;

    #[inline]
    fn from_zigzag(zigzag: u64) -> Self {
        let zigzag = zigzag as u32;
        (zigzag >> 1) as i32 ^ -((zigzag & 1) as i32)
    }

    #[inline]
    fn to_i64(self) -> i64 {
        self.into()
    }
}

/// Eight groups of seven bits, each in a byte, without the gaps.
#[inline]
fn join(word: u64) -> u64 {
    let word = word & 0x7F7F_7F7F_7F7F_7F7F;
    let word = (word & 0x007F_007F_007F_007F) | ((word & 0x7F00_7F00_7F00_7F00) >> 1);
    let word = (word & 0x0000_3FFF_0000_3FFF) | ((word & 0x3FFF_0000_3FFF_0000) >> 2);
    (word & 0x0000_0000_0FFF_FFFF) | ((word & 0x0FFF_FFFF_0000_0000) >> 4)
}

/// The reverse of `join`, for numbers of not more than 56 bits.
#[inline]
fn spread(number: u64) -> u64 {
    let word = (number & 0x0000_0000_0FFF_FFFF) | ((number & 0x00FF_FFFF_F000_0000) << 4);
    let word = (word & 0x0000_3FFF_0000_3FFF) | ((word & 0x0FFF_C000_0FFF_C000) << 2);
    (word & 0x007F_007F_007F_007F) | ((word & 0x3F80_3F80_3F80_3F80) << 1)
}

/// The number that a block goes on with. The block then begins behind it.
#[inline]
pub fn read<T: Integer>(block: &mut &[u8]) -> Result<T, Damage> {
    let data = *block;
    let Some((&first, behind)) = data.split_first() else {
        return Err(Damage::WithinValue);
    };
    if first < 0x80 {
        *block = behind;
        return Ok(T::from_zigzag(first.into()));
    }
    if let Some(word) = data.first_chunk() {
        let word = u64::from_le_bytes(*word);
        let ends = !word & HIGH_BITS;
        let width = (ends.trailing_zeros() as usize >> 3) + 1;
        let zigzag = join(word & (ends ^ ends.wrapping_sub(1)));
        if ends != 0 && width <= T::LONGEST && T::fits(zigzag) {
            *block = data.get(width..).unwrap_or_default();
            return Ok(T::from_zigzag(zigzag));
        }
    }
    read_slowly(block)
}

/// As `read`, for numbers near the end of a block, long ones, and damaged ones.
#[cold]
fn read_slowly<T: Integer>(block: &mut &[u8]) -> Result<T, Damage> {
    let mut zigzag = 0_u128;
    for (place, &byte) in block.iter().enumerate() {
        zigzag |= u128::from(byte & 0x7F) << (7 * place);
        if byte < 0x80 {
            if zigzag >> T::BITS != 0 {
                return Err(Damage::WideNumber { bits: T::BITS });
            }
            *block = &block[place + 1..];
            return Ok(T::from_zigzag(zigzag as u64));
        }
        if place + 1 == T::LONGEST {
            return Err(Damage::LongNumber { bytes: T::LONGEST });
        }
    }
    Err(Damage::WithinNumber)
}

/// As many numbers as there is room for, or as the block has. Returns how many these are.
///
/// A number probably has as many bytes as the one before it, so the place of the next one is known before this one is loaded.
pub fn read_many<T: Integer>(block: &mut &[u8], target: &mut [T]) -> Result<usize, Damage> {
    let mut count = 0;
    while count < target.len() && !block.is_empty() {
        let (filled, read_bytes) = read_words(block, &mut target[count..]);
        count += filled;
        *block = &block[read_bytes..];
        if let Some(slot) = target.get_mut(count)
            && !block.is_empty()
        {
            *slot = read(block)?;
            count += 1;
        }
    }
    Ok(count)
}

/// Numbers of not more than eight bytes, up to one that is longer, damaged, or near the end of the block; and the bytes of them.
#[inline]
fn read_words<T: Integer>(block: &[u8], target: &mut [T]) -> (usize, usize) {
    let (mut filled, mut at) = (0, 0);
    // The high bit that is clear in a number's last byte, and all up to it.
    let (mut end, mut high_bits, mut width) = (0x80, 0x80, 1);
    for slot in target {
        let Some(word) = block.get(at..).and_then(|left| left.first_chunk()) else {
            break;
        };
        let word = u64::from_le_bytes(*word);
        if !word & high_bits != end {
            let ends = !word & HIGH_BITS;
            if ends == 0 {
                break;
            }
            end = ends & ends.wrapping_neg();
            high_bits = (end | (end - 1)) & HIGH_BITS;
            width = (end.trailing_zeros() as usize >> 3) + 1;
        }
        let zigzag = if width == 1 {
            word & 0x7F
        } else {
            join(word & (end - 1))
        };
        if width > T::LONGEST || !T::fits(zigzag) {
            break;
        }
        *slot = T::from_zigzag(zigzag);
        filled += 1;
        at += width;
    }
    (filled, at)
}

/// Append a number.
#[inline]
pub fn write(target: &mut Vec<u8>, number: i64) {
    let mut zigzag = (number << 1 ^ number >> 63) as u64;
    if zigzag < 0x80 {
        target.push(zigzag as u8);
    } else if zigzag >> 56 == 0 {
        let width = (70 - zigzag.leading_zeros() as usize) / 7;
        let word = spread(zigzag) | HIGH_BITS & !(u64::MAX << (8 * (width - 1)));
        let length = target.len() + width;
        target.extend_from_slice(&word.to_le_bytes());
        target.truncate(length);
    } else {
        while zigzag >= 0x80 {
            target.push(zigzag as u8 | 0x80);
            zigzag >>= 7;
        }
        target.push(zigzag as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(number: i64) -> Vec<u8> {
        let mut target = Vec::new();
        write(&mut target, number);
        target
    }

    #[test]
    fn numbers_of_each_width_come_back() {
        for shift in 0..64 {
            for number in [
                1_i64 << shift,
                (1_i64 << shift).wrapping_neg(),
                (1_i64 << shift).wrapping_sub(1),
            ] {
                let mut data = bytes(number);
                let width = data.len();
                assert_eq!(read(&mut &data[..]), Ok(number));
                data.extend_from_slice(&[0; 8]);
                let mut block = &data[..];
                assert_eq!(read(&mut block), Ok(number));
                assert_eq!(block.len(), 8);
                let many = data[..width].repeat(9);
                let mut target = [0_i64; 10];
                assert_eq!(read_many(&mut &many[..], &mut target), Ok(9));
                assert_eq!(target[..9], [number; 9]);
            }
        }
    }

    #[test]
    fn bytes_are_those_of_the_specification() {
        for (number, data) in [
            (0, &[0][..]),
            (-1, &[1]),
            (1, &[2]),
            (-64, &[0x7F]),
            (64, &[0x80, 1]),
        ] {
            assert_eq!(bytes(number), data);
        }
        assert_eq!(
            bytes(i64::MIN),
            [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1]
        );
    }

    #[test]
    fn numbers_with_more_bytes_or_bits_than_their_type_are_damage() {
        let continued = [0xFF; 12];
        assert_eq!(
            read::<i32>(&mut &continued[..]),
            Err(Damage::LongNumber { bytes: 5 })
        );
        assert_eq!(
            read::<i64>(&mut &continued[..]),
            Err(Damage::LongNumber { bytes: 10 })
        );
        assert_eq!(read::<i64>(&mut &continued[..9]), Err(Damage::WithinNumber));
        let wide = [0xFF, 0xFF, 0xFF, 0xFF, 0x1F, 0, 0, 0];
        assert_eq!(
            read::<i32>(&mut &wide[..]),
            Err(Damage::WideNumber { bits: 32 })
        );
        assert_eq!(
            read_many::<i32>(&mut &wide[..], &mut [0; 4]),
            Err(Damage::WideNumber { bits: 32 })
        );
        let mut wide = [0xFF; 10];
        wide[9] = 2;
        assert_eq!(
            read::<i64>(&mut &wide[..]),
            Err(Damage::WideNumber { bits: 64 })
        );
    }
}
