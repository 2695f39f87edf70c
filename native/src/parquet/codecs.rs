//! Decompression of pages into no more bytes than their headers promise.
//!
//! The codecs of the crate `parquet` let gzip, brotli and LZ4 frames write as much as they want, so a page of 1 MB takes 1 GB.

use std::io::{Cursor, Read};
use std::mem::take;

use bytes::Bytes;
use parquet::basic::Compression;

use super::failure::{Result, damaged, too_large};
use super::spares::{Page, Spares};

/// Decompresses the pages of a column. Its state is used again for each page.
pub struct Decompressor {
    codec: Compression,
    snappy: snap::raw::Decoder,
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    /// The page that was decompressed last. The crate `parquet` refers to it until it has the next one.
    last: Page,
}

impl Decompressor {
    pub fn new(codec: Compression) -> Self {
        Self {
            codec,
            snappy: snap::raw::Decoder::new(),
            zstd: None,
            last: Page::default(),
        }
    }

    /// Whether pages are stored as they are.
    pub fn is_plain(&self) -> bool {
        matches!(self.codec, Compression::UNCOMPRESSED)
    }

    /// A page of `size` bytes, of which the first `plain` are stored as they are.
    ///
    /// Memory is touched as bytes come out of the codec, so a header that promises more than there is takes none.
    pub fn page(
        &mut self,
        stored: &[u8],
        plain: usize,
        size: usize,
        spares: &Spares,
    ) -> Result<Bytes> {
        spares.keep(take(&mut self.last));
        let mut page = spares
            .take(size)
            .map_err(|_| too_large!("a page of {size} bytes, for which there is no memory"))?;
        if plain > 0 || size == 0 {
            page.clear();
            page.extend_from_slice(&stored[..plain]);
        }
        // A page of nulls may have no bytes at all, and no codec's empty stream either.
        if size > plain {
            self.write(&stored[plain..], plain, size - plain, &mut page)?;
        }
        let room = page.capacity();
        let page = Bytes::from(page);
        self.last = (page.clone(), room);
        Ok(page)
    }

    /// Writes what `stored` decompresses to, which must be `size` bytes, after the first `before` bytes of `out`. Later bytes of
    /// `out` are written over.
    fn write(
        &mut self,
        stored: &[u8],
        before: usize,
        size: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        if !matches!(self.codec, Compression::SNAPPY) {
            out.truncate(before);
        }
        match self.codec {
            Compression::UNCOMPRESSED => out.extend_from_slice(stored),
            Compression::SNAPPY => {
                check_snappy(stored, size)?;
                out.resize(before + size, 0);
                let written = self.snappy.decompress(stored, &mut out[before..]);
                let written = written.map_err(|error| damaged!("a damaged page: {error}"))?;
                out.truncate(before + written);
            }
            Compression::GZIP(_) => {
                append_all(flate2::bufread::MultiGzDecoder::new(stored), size, out)?
            }
            Compression::BROTLI(_) => append_all(
                brotli_decompressor::Decompressor::new(stored, 4096),
                size,
                out,
            )?,
            Compression::ZSTD(_) => self.append_zstd(stored, size, out)?,
            Compression::LZ4_RAW => append_lz4(stored, size, out)?,
            Compression::LZ4 => append_old_lz4(stored, size, out)?,
            Compression::LZO => {
                return Err(damaged!(
                    "pages are compressed with LZO, which is not supported"
                ));
            }
        }
        match out.len() - before {
            written if written == size => Ok(()),
            written if written > size => Err(damaged!(
                "a page of more than the {size} bytes that its header says"
            )),
            written => Err(damaged!(
                "a page of {written} bytes, and its header says {size}"
            )),
        }
    }

    fn append_zstd(&mut self, stored: &[u8], size: usize, out: &mut Vec<u8>) -> Result<()> {
        let decompressor = match &mut self.zstd {
            Some(known) => known,
            none => none.insert(
                zstd::bulk::Decompressor::new()
                    .map_err(|error| damaged!("zstd cannot be used: {error}"))?,
            ),
        };
        let before = out.len();
        out.reserve_exact(size);
        let mut end = Cursor::new(out);
        end.set_position(before as u64);
        decompressor
            .decompress_to_buffer(stored, &mut end)
            .map_err(|error| {
                damaged!("a damaged page, or one that is larger than its header says: {error}")
            })?;
        Ok(())
    }
}

/// Checks that a page promises as many bytes as its header, and no more than it can have.
fn check_snappy(stored: &[u8], size: usize) -> Result<()> {
    let promised =
        snap::raw::decompress_len(stored).map_err(|error| damaged!("a damaged page: {error}"))?;
    // Each three bytes give 64 at most.
    if promised != size || size / 32 > stored.len() {
        return Err(damaged!(
            "a page of {promised} bytes in {}, and its header says {size}",
            stored.len()
        ));
    }
    Ok(())
}

/// Append the bytes of a reader, up to one more than `size`.
fn append_all(reader: impl Read, size: usize, out: &mut Vec<u8>) -> Result<()> {
    reader
        .take(size as u64 + 1)
        .read_to_end(out)
        .map_err(|error| damaged!("a damaged page: {error}"))?;
    Ok(())
}

fn append_lz4(stored: &[u8], size: usize, out: &mut Vec<u8>) -> Result<()> {
    // A byte gives 255 at most.
    if size / 256 > stored.len() {
        return Err(damaged!("a page of {size} bytes in {}", stored.len()));
    }
    let before = out.len();
    out.resize(before + size, 0);
    let written = lz4_flex::block::decompress_into(stored, &mut out[before..]);
    out.truncate(before + written.map_err(|error| damaged!("a damaged page: {error}"))?);
    Ok(())
}

/// The codec `LZ4`, which writers have understood in three ways: Hadoop's blocks, frames, and blocks without their lengths.
fn append_old_lz4(stored: &[u8], size: usize, out: &mut Vec<u8>) -> Result<()> {
    let before = out.len();
    if append_hadoop(stored, size, out).is_ok() && out.len() - before == size {
        return Ok(());
    }
    out.truncate(before);
    if append_all(lz4_flex::frame::FrameDecoder::new(stored), size, out).is_ok()
        && out.len() - before == size
    {
        return Ok(());
    }
    out.truncate(before);
    append_lz4(stored, size, out)
}

/// Blocks, each after its decompressed and its stored length (four bytes each, big-endian).
fn append_hadoop(mut stored: &[u8], size: usize, out: &mut Vec<u8>) -> Result<()> {
    let most = out.len() + size;
    while let Some((lengths, others)) = stored.split_first_chunk::<8>() {
        let [a, b, c, d, e, f, g, h] = lengths.map(usize::from);
        let (decompressed, length) = (
            a << 24 | b << 16 | c << 8 | d,
            e << 24 | f << 16 | g << 8 | h,
        );
        let block = others
            .get(..length)
            .ok_or_else(|| damaged!("a block that ends after its page"))?;
        if decompressed > most.saturating_sub(out.len()) {
            return Err(damaged!("a page of more bytes than its header says"));
        }
        append_lz4(block, decompressed, out)?;
        stored = &others[length..];
    }
    Ok(())
}
