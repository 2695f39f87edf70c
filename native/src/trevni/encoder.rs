//! Lengths and values into the blocks of a column. The counterpart of `decoder`.

use super::values::SLACK;
use super::varint::{self, Integer};

/// Arrays of values. Each kind has its own.
#[derive(Clone, Copy)]
pub enum Values<'a> {
    Nulls,
    Ints(&'a [i32]),
    Longs(&'a [i64]),
    Fixed4(&'a [u8]),
    Fixed8(&'a [u8]),
    /// The lowest bit of a byte is first; `first` is the number of the first value in its buffer.
    Bits {
        data: &'a [u8],
        first: usize,
    },
    Text {
        data: &'a [u8],
        offsets: &'a [i32],
    },
}

/// The arrays are shorter than lengths or entries say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooShort;

/// Where rows are appended: from `row` on, and for array columns from `value` on.
#[derive(Clone, Copy)]
pub struct Place {
    pub row: usize,
    pub value: usize,
}

/// Encodes the rows of a column, block by block. Keeps a block that is not full until there are more rows.
pub struct Encoder {
    /// Size from which a block ends. Lengths that continue a run take none.
    pub block_bytes: usize,
    /// Rows of a block, at most.
    pub block_rows: usize,
    /// Whether lengths of one may be runs, as those of zero are.
    pub ones: bool,
    pub rows: usize,
    data: Vec<u8>,
    weight: usize,
    /// Bits in the last byte, of bits.
    bits: usize,
    /// The length that is repeated, and how often.
    run: (i64, usize),
}

impl Encoder {
    pub fn new(block_bytes: usize, block_rows: usize, ones: bool) -> Self {
        Self {
            block_bytes,
            block_rows,
            ones,
            rows: 0,
            data: Vec::new(),
            weight: 0,
            bits: 0,
            run: (0, 0),
        }
    }

    /// Append rows until the block is full or they end. `entries` has the number of lengths, or of values if there are none, before
    /// each row, and of all rows. Returns whether the block is full.
    pub fn append(
        &mut self,
        lengths: Option<&[i64]>,
        values: Values,
        entries: &[i64],
        place: &mut Place,
    ) -> Result<bool, TooShort> {
        match values {
            Values::Nulls => self.append_rows(lengths, entries, place, |_, _, _| Ok(())),
            Values::Ints(values) => {
                self.append_rows(lengths, entries, place, |to, start, count| {
                    put_integers(&mut to.data, some(values, start, count)?);
                    Ok(())
                })
            }
            Values::Longs(values) => {
                self.append_rows(lengths, entries, place, |to, start, count| {
                    put_integers(&mut to.data, some(values, start, count)?);
                    Ok(())
                })
            }
            Values::Fixed4(values) => {
                let values = values.as_chunks::<4>().0;
                self.append_rows(lengths, entries, place, |to, start, count| {
                    put_fixed(&mut to.data, some(values, start, count)?);
                    Ok(())
                })
            }
            Values::Fixed8(values) => {
                let values = values.as_chunks::<8>().0;
                self.append_rows(lengths, entries, place, |to, start, count| {
                    put_fixed(&mut to.data, some(values, start, count)?);
                    Ok(())
                })
            }
            Values::Bits { data, first } => {
                let array = lengths.is_some();
                self.append_rows(lengths, entries, place, |to, start, count| {
                    to.put_bits(data, first + start, count, array)
                })
            }
            Values::Text { data, offsets } => {
                self.append_rows(lengths, entries, place, |to, start, count| {
                    put_text(&mut to.data, data, some(offsets, start, count + 1)?)
                })
            }
        }
    }

    /// The block so far. The next one begins.
    pub fn take(&mut self) -> &[u8] {
        self.end_run();
        self.weight = 0;
        self.bits = 0;
        self.rows = 0;
        &self.data
    }

    /// Forget the block that was taken. Its memory is kept.
    pub fn clear(&mut self) {
        self.data.clear();
    }

    #[inline(always)]
    fn append_rows(
        &mut self,
        lengths: Option<&[i64]>,
        entries: &[i64],
        place: &mut Place,
        put: impl Fn(&mut Self, usize, usize) -> Result<(), TooShort>,
    ) -> Result<bool, TooShort> {
        for row in entries.get(place.row..).unwrap_or_default().windows(2) {
            let &[start, end] = row else { unreachable!() };
            let start = usize::try_from(start).map_err(|_| TooShort)?;
            let count = usize::try_from(end)
                .ok()
                .and_then(|end| end.checked_sub(start))
                .ok_or(TooShort)?;
            match lengths {
                None => {
                    put(self, start, count)?;
                    self.weight = self.data.len();
                }
                Some(lengths) => {
                    for &length in some(lengths, start, count)? {
                        let count = usize::try_from(length).map_err(|_| TooShort)?;
                        self.put_array(length, count, place.value, &put)?;
                        place.value += count;
                    }
                }
            }
            place.row += 1;
            self.rows += 1;
            if self.weight >= self.block_bytes || self.rows >= self.block_rows {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A length and its values.
    #[inline(always)]
    fn put_array(
        &mut self,
        length: i64,
        count: usize,
        value: usize,
        put: impl Fn(&mut Self, usize, usize) -> Result<(), TooShort>,
    ) -> Result<(), TooShort> {
        if self.run.1 > 0 {
            if self.run.0 == length {
                self.run.1 += 1;
                return Ok(());
            }
            self.end_run();
        }
        if length == 0 || (self.ones && length == 1) {
            self.run = (length, 1);
            self.weight += 1;
            return Ok(());
        }
        let before = self.data.len();
        varint::write(&mut self.data, length);
        put(self, value, count)?;
        self.weight += self.data.len() - before;
        Ok(())
    }

    /// Write the lengths that are alike.
    fn end_run(&mut self) {
        match std::mem::take(&mut self.run) {
            (_, 0) => {}
            (length, 1) => varint::write(&mut self.data, length),
            (length, count) => varint::write(&mut self.data, 3 - length - 2 * count as i64),
        }
    }

    fn put_bits(
        &mut self,
        data: &[u8],
        start: usize,
        count: usize,
        array: bool,
    ) -> Result<(), TooShort> {
        if array {
            self.bits = 0;
        }
        for number in start..start + count {
            let bit = data.get(number / 8).ok_or(TooShort)? >> (number % 8) & 1;
            match self.data.last_mut() {
                Some(last) if !self.bits.is_multiple_of(8) => *last |= bit << (self.bits % 8),
                _ => self.data.push(bit),
            }
            self.bits += 1;
        }
        Ok(())
    }
}

#[inline(always)]
fn some<T>(values: &[T], start: usize, count: usize) -> Result<&[T], TooShort> {
    values
        .get(start..)
        .and_then(|values| values.get(..count))
        .ok_or(TooShort)
}

#[inline]
fn put_integers<T: Integer>(target: &mut Vec<u8>, values: &[T]) {
    for value in values {
        varint::write(target, value.to_i64());
    }
}

#[inline]
fn put_fixed<const WIDTH: usize>(target: &mut Vec<u8>, values: &[[u8; WIDTH]]) {
    match values {
        [value] => target.extend_from_slice(value),
        values => target.extend_from_slice(values.as_flattened()),
    }
}

#[inline]
fn put_text(target: &mut Vec<u8>, data: &[u8], offsets: &[i32]) -> Result<(), TooShort> {
    for ends in offsets.windows(2) {
        let &[start, end] = ends else { unreachable!() };
        let start = usize::try_from(start).map_err(|_| TooShort)?;
        let size = usize::try_from(end)
            .ok()
            .and_then(|end| end.checked_sub(start))
            .ok_or(TooShort)?;
        let data = data.get(start..).ok_or(TooShort)?;
        varint::write(target, size as i64);
        match data.first_chunk::<SLACK>() {
            Some(chunk) if size <= SLACK => {
                let length = target.len() + size;
                target.extend_from_slice(chunk);
                target.truncate(length);
            }
            _ => target.extend_from_slice(data.get(..size).ok_or(TooShort)?),
        }
    }
    Ok(())
}
