//! Memory of a caller that texts and numbers are written into, one after the other.

use pyo3::PyErr;
use pyo3::exceptions::PyValueError;

/// Short texts are copied as this many bytes where there is room, which saves a call.
pub const WIDE: usize = 32;

/// Bytes of a number in groups of seven bits, at most.
pub const VARINT: usize = 10;

/// Why no more can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The memory is full: the caller has to make room.
    Full,
    /// An offset or an index leads out of its array.
    OutOfBounds,
    /// A day that is not in the years 0 to 9999.
    OutOfCalendar,
}

impl From<Stop> for PyErr {
    fn from(stop: Stop) -> PyErr {
        PyValueError::new_err(match stop {
            Stop::Full => "there is not enough room",
            Stop::OutOfBounds => "an offset or an index leads out of its array",
            Stop::OutOfCalendar => "a time is not in the years 0 to 9999",
        })
    }
}

/// Memory, and the end of what is written.
pub struct Room<'a> {
    bytes: &'a mut [u8],
    end: usize,
}

impl<'a> Room<'a> {
    /// `end` is where writing starts.
    pub fn new(bytes: &'a mut [u8], end: usize) -> Self {
        Room { bytes, end }
    }

    /// The end of what is written.
    pub fn end(&self) -> usize {
        self.end
    }

    /// Copy a text.
    #[inline]
    pub fn put(&mut self, text: &[u8]) -> Result<(), Stop> {
        let end = self.end + text.len();
        self.bytes
            .get_mut(self.end..end)
            .ok_or(Stop::Full)?
            .copy_from_slice(text);
        self.end = end;
        Ok(())
    }

    /// Write at most `N` bytes: `fill` gets so many, and returns how many of them count.
    #[inline]
    pub fn put_short<const N: usize>(
        &mut self,
        fill: impl FnOnce(&mut [u8; N]) -> usize,
    ) -> Result<(), Stop> {
        let free = self
            .bytes
            .get_mut(self.end..)
            .and_then(|free| free.first_chunk_mut())
            .ok_or(Stop::Full)?;
        self.end += fill(free);
        Ok(())
    }

    /// Write a number in groups of seven bits.
    #[inline]
    pub fn put_varint(&mut self, number: u64) -> Result<(), Stop> {
        self.put_short(|out: &mut [u8; VARINT]| write_varint(out, 0, number))
    }

    /// Write a number in groups of seven bits, in zigzag form.
    #[inline]
    pub fn put_zigzag(&mut self, number: i64) -> Result<(), Stop> {
        self.put_varint(zigzag(number))
    }

    /// Put bytes in the place of the byte at `start`, which is written already. The bytes behind it move.
    #[inline]
    pub fn replace_byte(&mut self, start: usize, bytes: &[u8]) -> Result<(), Stop> {
        let end = self.end + bytes.len() - 1;
        if end > self.bytes.len() {
            return Err(Stop::Full);
        }
        if bytes.len() > 1 {
            self.bytes
                .copy_within(start + 1..self.end, start + bytes.len());
        }
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        self.end = end;
        Ok(())
    }

    /// Copy a text.
    #[inline]
    pub fn put_text(&mut self, text: Text) -> Result<(), Stop> {
        if text.size <= WIDE
            && let Some(wide) = text.tail.first_chunk::<WIDE>()
            && let Some(free) = self
                .bytes
                .get_mut(self.end..)
                .and_then(|free| free.first_chunk_mut::<WIDE>())
        {
            *free = *wide;
            self.end += text.size;
            return Ok(());
        }
        self.put(text.bytes())
    }
}

/// 0, -1, 1, -2 as 0, 1, 2, 3.
#[inline]
pub fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Write a number at `place`, seven bits a byte, the lowest first. The high bit says that another byte follows. Returns the place after it.
#[inline]
pub fn write_varint<const N: usize>(out: &mut [u8; N], mut place: usize, mut number: u64) -> usize {
    while number >= 0x80 {
        out[place] = number as u8 | 0x80;
        number >>= 7;
        place += 1;
    }
    out[place] = number as u8;
    place + 1
}

/// A text, and what follows it in memory, so that it can be copied as `WIDE` bytes.
#[derive(Clone, Copy)]
pub struct Text<'a> {
    tail: &'a [u8],
    size: usize,
}

impl<'a> Text<'a> {
    /// The first `size` bytes of `tail`.
    #[inline]
    pub fn of(tail: &'a [u8], size: usize) -> Self {
        Text {
            tail,
            size: size.min(tail.len()),
        }
    }

    #[inline]
    pub fn size(&self) -> usize {
        self.size
    }

    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        &self.tail[..self.size]
    }
}

/// Texts that are written often, in one piece of memory.
pub struct Literals {
    bytes: Vec<u8>,
}

/// One of them: where it starts, and its size.
#[derive(Clone, Copy)]
pub struct Literal(usize, usize);

impl Literal {
    #[inline]
    pub fn size(self) -> usize {
        self.1
    }
}

impl Literals {
    pub fn new() -> Self {
        Literals {
            bytes: Vec::with_capacity(1024),
        }
    }

    /// Add the text of these parts.
    pub fn add(&mut self, parts: &[&[u8]]) -> Literal {
        let start = self.bytes.len();
        parts
            .iter()
            .for_each(|part| self.bytes.extend_from_slice(part));
        Literal(start, self.bytes.len() - start)
    }

    /// Let all texts be copied as `WIDE` bytes, when the last one is added.
    pub fn finish(&mut self) {
        self.bytes.extend_from_slice(&[0; WIDE]);
    }

    #[inline]
    pub fn get(&self, Literal(start, size): Literal) -> Text<'_> {
        Text::of(&self.bytes[start..], size)
    }
}

/// Texts one after the other, and where each one starts and ends. They come from outside, so nothing is known of the offsets.
#[derive(Clone, Copy)]
pub struct Texts<'a> {
    pub data: &'a [u8],
    pub offsets: &'a [i64],
}

impl<'a> Texts<'a> {
    #[inline]
    pub fn get(&self, index: usize) -> Result<Text<'a>, Stop> {
        let (Some(&start), Some(&end)) = (
            self.offsets.get(index),
            self.offsets.get(index.wrapping_add(1)),
        ) else {
            return Err(Stop::OutOfBounds);
        };
        // A negative offset is beyond the end of all memory.
        let (start, end) = (start as usize, end as usize);
        if start > end || end > self.data.len() {
            return Err(Stop::OutOfBounds);
        }
        Ok(Text {
            tail: &self.data[start..],
            size: end - start,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(put: impl FnOnce(&mut Room) -> Result<(), Stop>) -> Vec<u8> {
        let mut bytes = [0; 64];
        let mut room = Room::new(&mut bytes, 0);
        put(&mut room).unwrap();
        let end = room.end();
        bytes[..end].to_vec()
    }

    #[test]
    fn varints_have_seven_bits_a_byte() {
        assert_eq!(bytes(|room| room.put_varint(300)), [0xAC, 0x02]);
        assert_eq!(bytes(|room| room.put_varint(u64::MAX)).len(), 10);
        assert_eq!(bytes(|room| room.put_zigzag(-2)), [3]);
    }
}
