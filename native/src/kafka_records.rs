//! Records of Kafka's record batches (format 2) out of arrays of keys and values, and the partitions of keys.
//!
//! ```text
//! length | attributes, timestamp delta | offset delta | key length | key | value length | value | headers
//! varint   00 00                         varint         varint             varint
//! ```
//!
//! The headers are their number, those that all records have, and those whose values are columns: a record whose value is null has none.

use std::num::NonZeroU32;

use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::json_rows::numbers::{integer_size, put_integer};
use crate::room::{Literal, Literals, Room, Stop, Texts, write_varint, zigzag};

/// How many records before it a record's value is fetched into the processor's cache, because the values of a partition lie apart.
const AHEAD: usize = 6;
/// Bytes of the numbers before a key, at most. So many are free beside the records.
const HEAD: usize = 32;
/// The length of a field that is null.
const NULL: i64 = -1;

/// Let the processor fetch bytes while it does something else.
#[inline]
fn fetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        // Lines of 64 bytes come one by one. After a few, the processor fetches the next ones by itself.
        let lines = bytes.iter().take(1024).step_by(64);
        lines.for_each(safe_arch::prefetch_t0);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// Texts, or integers that are written in decimal.
enum Values<'a> {
    Texts(Texts<'a>),
    Integers(&'a [i64]),
}

/// The keys, values or values of a header: some of them null, and what is before and after each of the others.
struct Fields<'a> {
    values: Values<'a>,
    nulls: Option<&'a [u8]>,
    around: [Literal; 2],
}

impl Fields<'_> {
    /// The length of a row's field in its record: -1 for null.
    #[inline(always)]
    fn length(&self, row: usize) -> Result<i64, Stop> {
        if let Some(nulls) = self.nulls
            && *at(nulls, row)? != 0
        {
            return Ok(NULL);
        }
        let size = match self.values {
            Values::Texts(texts) => texts.get(row)?.size(),
            Values::Integers(values) => integer_size(*at(values, row)?),
        };
        let [before, after] = self.around;
        Ok((before.size() + size + after.size()) as i64)
    }

    /// Write the field of a row that is not null.
    #[inline(always)]
    fn put(&self, row: usize, room: &mut Room, literals: &Literals) -> Result<(), Stop> {
        let [before, after] = self.around;
        if before.size() > 0 {
            room.put_text(literals.get(before))?;
        }
        match self.values {
            Values::Texts(texts) => room.put_text(texts.get(row)?)?,
            Values::Integers(values) => put_integer(room, *at(values, row)?)?,
        }
        if after.size() > 0 {
            room.put_text(literals.get(after))?;
        }
        Ok(())
    }
}

#[inline]
fn at<T>(values: &[T], row: usize) -> Result<&T, Stop> {
    values.get(row).ok_or(Stop::OutOfBounds)
}

/// The size of a field with its length.
#[inline]
fn field_size(length: i64) -> usize {
    width(length) + length.max(0) as usize
}

/// The parts of records.
struct Records<'a> {
    keys: Option<Fields<'a>>,
    values: Option<Fields<'a>>,
    /// How many headers all records have.
    fixed: usize,
    /// The other headers: the bytes before a value that is null, those before one that is not, and the values.
    columns: Vec<([Literal; 2], Fields<'a>)>,
    /// The headers of all records, unless they are before the first value.
    end: Literal,
    literals: Literals,
}

/// The size of a varint.
#[inline]
fn width(value: i64) -> usize {
    let number = zigzag(value);
    if number < 0x80 {
        1
    } else {
        (70 - number.leading_zeros() as usize) / 7
    }
}

#[inline]
fn put_varint(room: &mut Room, value: i64) -> Result<(), Stop> {
    room.put_short(|out: &mut [u8; HEAD]| write_varint(out, 0, zigzag(value)))
}

/// The numbers of a record: the size of all that follows it, then those of the format, and the length of each header's value.
struct Lengths {
    size: usize,
    delta: i64,
    key: i64,
    value: i64,
    count: i64,
    headers: Vec<i64>,
}

impl Records<'_> {
    /// Write records one after the other, with offset deltas from 0 on, while they are within `limit` bytes; the first one always.
    ///
    /// Returns the number of records and of bytes: 0 and the size of the first record if there is no room for it.
    fn write(&self, rows: &[i64], limit: usize, data: &mut [u8]) -> Result<(usize, usize), Stop> {
        let mut room = Room::new(data, 0);
        let mut lengths = Lengths {
            size: 0,
            delta: 0,
            key: NULL,
            value: NULL,
            count: 0,
            headers: vec![NULL; self.columns.len()],
        };
        for (written, &row) in rows.iter().enumerate() {
            if let (Some(values), Some(&next)) = (&self.values, rows.get(written + AHEAD))
                && let Values::Texts(texts) = values.values
            {
                fetch(texts.get(index(next)?)?.bytes());
            }
            let row = index(row)?;
            lengths.delta = written as i64;
            self.measure(row, &mut lengths)?;
            let start = room.end();
            let whole = width(lengths.size as i64) + lengths.size;
            if written > 0 && start + whole > limit {
                return Ok((written, start));
            }
            match self.write_record(row, &lengths, &mut room) {
                Ok(()) => debug_assert_eq!(room.end(), start + whole),
                Err(Stop::Full) if written == 0 => return Ok((0, whole + HEAD)),
                Err(Stop::Full) => return Ok((written, start)),
                Err(stop) => return Err(stop),
            }
        }
        Ok((rows.len(), room.end()))
    }

    /// Compute the numbers of a row's record.
    #[inline]
    fn measure(&self, row: usize, lengths: &mut Lengths) -> Result<(), Stop> {
        let length = |fields: &Option<Fields>| {
            let fields = fields.as_ref();
            fields.map_or(Ok(NULL), |fields| fields.length(row))
        };
        lengths.key = length(&self.keys)?;
        lengths.value = length(&self.values)?;
        let mut size = self.end.size();
        let mut count = self.fixed as i64;
        for (number, (leads, values)) in self.columns.iter().enumerate() {
            let length = values.length(row)?;
            lengths.headers[number] = length;
            if length == NULL {
                size += leads[0].size();
            } else {
                size += leads[1].size() + field_size(length);
                count += 1;
            }
        }
        lengths.count = count;
        let fields = field_size(lengths.key) + field_size(lengths.value);
        lengths.size = 2 + width(lengths.delta) + fields + width(count) + size;
        Ok(())
    }

    #[inline]
    fn write_record(&self, row: usize, lengths: &Lengths, room: &mut Room) -> Result<(), Stop> {
        let literals = &self.literals;
        room.put_short(|out: &mut [u8; HEAD]| {
            let place = write_varint(out, 0, zigzag(lengths.size as i64));
            out[place..place + 2].fill(0);
            let place = write_varint(out, place + 2, zigzag(lengths.delta));
            write_varint(out, place, zigzag(lengths.key))
        })?;
        if let Some(keys) = &self.keys
            && lengths.key != NULL
        {
            keys.put(row, room, literals)?;
        }
        put_varint(room, lengths.value)?;
        if let Some(values) = &self.values
            && lengths.value != NULL
        {
            values.put(row, room, literals)?;
        }
        put_varint(room, lengths.count)?;
        for (number, (leads, values)) in self.columns.iter().enumerate() {
            let length = lengths.headers[number];
            if length == NULL {
                room.put_text(literals.get(leads[0]))?;
            } else {
                room.put_text(literals.get(leads[1]))?;
                put_varint(room, length)?;
                values.put(row, room, literals)?;
            }
        }
        if self.end.size() > 0 {
            room.put_text(literals.get(self.end))?;
        }
        Ok(())
    }
}

fn index(row: i64) -> Result<usize, Stop> {
    usize::try_from(row).map_err(|_| Stop::OutOfBounds)
}

/// The hash of Kafka's default partitioner.
fn murmur2(key: &[u8]) -> u32 {
    const FACTOR: u32 = 0x5BD1_E995;
    let (words, tail) = key.as_chunks::<4>();
    let mut hash = 0x9747_B28C ^ key.len() as u32;
    for word in words {
        let word = u32::from_le_bytes(*word).wrapping_mul(FACTOR);
        hash = hash.wrapping_mul(FACTOR) ^ (word ^ word >> 24).wrapping_mul(FACTOR);
    }
    if !tail.is_empty() {
        let last = tail
            .iter()
            .rev()
            .fold(0, |last, &byte| last << 8 | u32::from(byte));
        hash = (hash ^ last).wrapping_mul(FACTOR);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(FACTOR);
    hash ^ hash >> 15
}

/// Values as Python says them: bytes and offsets of texts, or integers alone; a mask of nulls, and what is before and after each value.
type Column<'py> = (
    Option<PyReadonlyArray1<'py, u8>>,
    PyReadonlyArray1<'py, i64>,
    Option<PyReadonlyArray1<'py, u8>>,
    (Bound<'py, PyBytes>, Bound<'py, PyBytes>),
);

fn values<'a>((data, numbers, ..): &'a Column) -> PyResult<Values<'a>> {
    let numbers = numbers.as_slice()?;
    Ok(match data {
        None => Values::Integers(numbers),
        Some(data) => Values::Texts(Texts {
            data: data.as_slice()?,
            offsets: numbers,
        }),
    })
}

fn fields<'a>(column: &'a Column, literals: &mut Literals) -> PyResult<Fields<'a>> {
    let (_, _, nulls, (before, after)) = column;
    Ok(Fields {
        values: values(column)?,
        nulls: nulls.as_ref().map(|nulls| nulls.as_slice()).transpose()?,
        around: [before, after].map(|text| literals.add(&[text.as_bytes()])),
    })
}

/// Records of Kafka's record batches.
#[pymodule(submodule, name = "kafka_records")]
pub mod module {
    use super::*;

    /// Write the first of `rows` one after the other, within `limit` bytes. Returns how many, and their bytes.
    #[pyfunction]
    #[allow(clippy::too_many_arguments)] // one call for each batch, with all that it is made of
    fn write<'py>(
        py: Python<'py>,
        rows: PyReadonlyArray1<'py, i64>,
        keys: Option<Column<'py>>,
        values: Option<Column<'py>>,
        fixed: usize,
        headers: &[u8],
        columns: Vec<(Bound<'py, PyBytes>, Column<'py>)>,
        limit: usize,
        data: &Bound<'py, PyArray1<u8>>,
    ) -> PyResult<(usize, usize)> {
        let mut literals = Literals::new();
        let mut fields_of = |column| fields(column, &mut literals);
        let keys = keys.as_ref().map(&mut fields_of).transpose()?;
        let values = values.as_ref().map(&mut fields_of).transpose()?;
        // The headers that all records have, and the name of the first other one, are copied at once.
        let mut before = headers;
        let mut parts = Vec::with_capacity(columns.len());
        for (name, column) in &columns {
            let leads = [b"", name.as_bytes()].map(|name| literals.add(&[before, name]));
            parts.push((leads, fields(column, &mut literals)?));
            before = b"";
        }
        let end = literals.add(&[before]);
        literals.finish();
        let records = Records {
            keys,
            values,
            fixed,
            columns: parts,
            end,
            literals,
        };
        let (rows, mut data) = (rows.as_slice()?, data.try_readwrite()?);
        let data = data.as_slice_mut()?;
        Ok(py.detach(|| records.write(rows, limit, data))?)
    }

    /// Write the partition of each text with what is around it.
    #[pyfunction]
    fn partitions<'py>(
        py: Python<'py>,
        keys: Column<'py>,
        count: NonZeroU32,
        out: &Bound<'py, PyArray1<i32>>,
    ) -> PyResult<()> {
        let Values::Texts(texts) = values(&keys)? else {
            return Err(PyValueError::new_err("keys are texts"));
        };
        let (before, after) = (keys.3.0.as_bytes(), keys.3.1.as_bytes());
        let mut out = out.try_readwrite()?;
        let out = out.as_slice_mut()?;
        if texts.offsets.len() != out.len() + 1 {
            return Err(PyValueError::new_err(
                "there is one offset more than partitions",
            ));
        }
        let bare = before.is_empty() && after.is_empty();
        let mut whole = before.to_vec();
        py.detach(|| {
            out.iter_mut()
                .enumerate()
                .try_for_each(|(number, partition)| {
                    let text = texts.get(number)?.bytes();
                    let hash = if bare {
                        murmur2(text)
                    } else {
                        whole.truncate(before.len());
                        whole.extend_from_slice(text);
                        whole.extend_from_slice(after);
                        murmur2(&whole)
                    };
                    *partition = ((hash & i32::MAX as u32) % count) as i32;
                    Ok::<(), Stop>(())
                })
        })?;
        Ok(())
    }
}
