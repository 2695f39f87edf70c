//! Values of each kind, from the bytes of a block into arrays of the caller.

use super::damage::Damage;
use super::varint::{self, Integer};

/// A string of not more bytes is copied as so many, where there is room: that takes less time than a copy of any size.
pub const SLACK: usize = 32;

/// Arrays that values are put into.
pub trait Values {
    /// Values, from the start of the block: `most`, or fewer if the block has fewer. Returns how many. The block then begins behind them.
    fn read(&mut self, block: &mut &[u8], most: usize) -> Result<usize, Damage>;

    /// Values of a block that has nothing else, for so many rows.
    fn read_rows(&mut self, block: &[u8], rows: usize) -> Result<(), Damage> {
        let mut left = block;
        let values = self.read(&mut left, rows)?;
        if !left.is_empty() {
            return Err(Damage::MoreValues { rows });
        }
        if values < rows {
            return Err(Damage::Values { values, rows });
        }
        Ok(())
    }

    /// Values behind a length.
    #[inline]
    fn read_array(&mut self, block: &mut &[u8], count: usize) -> Result<(), Damage> {
        if self.read(block, count)? < count {
            return Err(Damage::WithinValue);
        }
        Ok(())
    }

    /// Values behind a run of lengths that are one.
    fn read_run(&mut self, block: &mut &[u8], count: usize) -> Result<(), Damage> {
        self.read_array(block, count)
    }

    /// Check what can be checked of whole blocks alone.
    fn end_block(&mut self) -> Result<(), Damage> {
        Ok(())
    }
}

/// How many values there are.
#[derive(Clone, Copy, Default)]
pub struct Count {
    pub values: usize,
    /// Bytes of text.
    pub bytes: usize,
}

pub struct Nulls;

impl Values for Nulls {
    fn read(&mut self, block: &mut &[u8], _: usize) -> Result<usize, Damage> {
        if block.is_empty() {
            Ok(0)
        } else {
            Err(Damage::Nulls)
        }
    }

    fn read_rows(&mut self, mut block: &[u8], _: usize) -> Result<(), Damage> {
        self.read(&mut block, 0).map(drop)
    }

    fn read_array(&mut self, _: &mut &[u8], _: usize) -> Result<(), Damage> {
        Ok(())
    }
}

pub struct Integers<'a, T> {
    pub target: &'a mut [T],
    pub count: &'a mut Count,
}

impl<T: Integer> Values for Integers<'_, T> {
    #[inline]
    fn read(&mut self, block: &mut &[u8], most: usize) -> Result<usize, Damage> {
        let target = self.target.get_mut(self.count.values..).unwrap_or_default();
        let most = most.min(target.len());
        let values = varint::read_many(block, &mut target[..most])?;
        self.count.values += values;
        Ok(values)
    }

    #[inline]
    fn read_array(&mut self, block: &mut &[u8], count: usize) -> Result<(), Damage> {
        if count >= 8 {
            return match self.read(block, count)? {
                values if values < count => Err(Damage::WithinValue),
                _ => Ok(()),
            };
        }
        for _ in 0..count {
            let number = varint::read(block)?;
            *self.target.get_mut(self.count.values).ok_or(Damage::Room)? = number;
            self.count.values += 1;
        }
        Ok(())
    }
}

/// Numbers of `WIDTH` bytes, which are kept as bytes.
pub struct Fixed<'a, const WIDTH: usize> {
    pub target: &'a mut [u8],
    pub count: &'a mut Count,
}

impl<const WIDTH: usize> Values for Fixed<'_, WIDTH> {
    #[inline]
    fn read(&mut self, block: &mut &[u8], most: usize) -> Result<usize, Damage> {
        let target = self
            .target
            .get_mut(WIDTH * self.count.values..)
            .ok_or(Damage::Room)?;
        if most == 1
            && let (Some((value, behind)), Some(target)) = (
                block.split_first_chunk::<WIDTH>(),
                target.first_chunk_mut::<WIDTH>(),
            )
        {
            *target = *value;
            *block = behind;
            self.count.values += 1;
            return Ok(1);
        }
        if most > block.len() / WIDTH && !block.len().is_multiple_of(WIDTH) {
            return Err(Damage::WithinValue);
        }
        let values = most.min(block.len() / WIDTH);
        let (data, behind) = block.split_at(WIDTH * values);
        target
            .get_mut(..data.len())
            .ok_or(Damage::Room)?
            .copy_from_slice(data);
        *block = behind;
        self.count.values += values;
        Ok(values)
    }
}

/// Strings or bytes: their data, one after the other, and where each ends.
pub struct Text<'a> {
    pub data: &'a mut [u8],
    pub offsets: &'a mut [i32],
    pub count: &'a mut Count,
    /// Strings whose characters are checked already; None for bytes.
    pub checked: Option<&'a mut Count>,
}

impl Values for Text<'_> {
    #[inline]
    fn read(&mut self, block: &mut &[u8], most: usize) -> Result<usize, Damage> {
        let mut target = self.data.get_mut(self.count.bytes..).ok_or(Damage::Room)?;
        let mut left = *block;
        let mut end = self.count.bytes;
        let mut values = 0;
        for offset in self
            .offsets
            .iter_mut()
            .skip(self.count.values + 1)
            .take(most)
        {
            if left.is_empty() {
                break;
            }
            let size: i32 = varint::read(&mut left)?;
            let size = usize::try_from(size).map_err(|_| Damage::NegativeSize)?;
            let (text, behind) = left.split_at_checked(size).ok_or(Damage::WithinValue)?;
            match (
                left.first_chunk::<SLACK>(),
                target.first_chunk_mut::<SLACK>(),
            ) {
                (Some(chunk), Some(target)) if size <= SLACK => *target = *chunk,
                _ => target
                    .get_mut(..size)
                    .ok_or(Damage::Room)?
                    .copy_from_slice(text),
            }
            end += size;
            *offset = i32::try_from(end).map_err(|_| Damage::Room)?;
            left = behind;
            target = &mut target[size..];
            values += 1;
        }
        *block = left;
        self.count.bytes = end;
        self.count.values += values;
        Ok(values)
    }

    fn end_block(&mut self) -> Result<(), Damage> {
        let Some(checked) = &mut self.checked else {
            return Ok(());
        };
        let data = self.data.get(..self.count.bytes).ok_or(Damage::Room)?;
        let text = &data[checked.bytes..];
        if !text.is_ascii() {
            simdutf8::basic::from_utf8(text).map_err(|_| Damage::NotUtf8)?;
            let starts = self
                .offsets
                .get(checked.values..self.count.values)
                .ok_or(Damage::Room)?;
            if starts.iter().any(|&start| {
                data.get(start as usize)
                    .is_some_and(|&byte| byte & 0xC0 == 0x80)
            }) {
                return Err(Damage::NotUtf8);
            }
        }
        **checked = *self.count;
        Ok(())
    }
}

/// One bit a value, the lowest first, in the blocks and in memory. In the blocks, those of each length begin a byte.
pub struct Bits<'a> {
    pub target: &'a mut [u8],
    pub count: &'a mut Count,
}

impl Bits<'_> {
    /// Append the first `count` bits.
    fn push(&mut self, bits: &[u8], count: usize) -> Result<(), Damage> {
        if count > 1 && self.count.values.is_multiple_of(8) {
            let start = self.count.values / 8;
            let target = self
                .target
                .get_mut(start..start + count.div_ceil(8))
                .ok_or(Damage::Room)?;
            target.copy_from_slice(&bits[..target.len()]);
            self.count.values += count;
            return Ok(());
        }
        for place in 0..count {
            self.push_bit(bits[place / 8] >> (place % 8))?;
        }
        Ok(())
    }

    #[inline]
    fn push_bit(&mut self, bit: u8) -> Result<(), Damage> {
        let place = self.count.values % 8;
        let byte = self
            .target
            .get_mut(self.count.values / 8)
            .ok_or(Damage::Room)?;
        // The bits after the last one are undefined.
        *byte = (*byte & !(u8::MAX << place)) | (bit & 1) << place;
        self.count.values += 1;
        Ok(())
    }
}

impl Values for Bits<'_> {
    /// All bits of the block: it does not say how many there are.
    fn read(&mut self, block: &mut &[u8], most: usize) -> Result<usize, Damage> {
        let count = most.min(8 * block.len());
        self.push(block, count)?;
        *block = &block[count.div_ceil(8)..];
        Ok(count)
    }

    fn read_rows(&mut self, block: &[u8], rows: usize) -> Result<(), Damage> {
        if block.len() != rows.div_ceil(8) {
            return Err(Damage::BitBytes {
                bytes: block.len(),
                bits: rows,
            });
        }
        self.push(block, rows)
    }

    /// Each of a run has a byte of its own.
    fn read_run(&mut self, block: &mut &[u8], count: usize) -> Result<(), Damage> {
        let (bytes, behind) = block.split_at_checked(count).ok_or(Damage::WithinValue)?;
        *block = behind;
        bytes.iter().try_for_each(|&byte| self.push_bit(byte))
    }
}
