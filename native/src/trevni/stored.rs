//! Blocks as a file has them: compressed, and with a checksum behind them.

use std::io::Read;

use bzip2::read::BzDecoder;
use flate2::{Decompress, FlushDecompress, Status};

use super::damage::Damage;

/// Bytes that a byte of a codec can stand for at most, and some more for short blocks. Nothing is decompressed that announces more.
const DEFLATE_RATIO: usize = 1032;
const SNAPPY_RATIO: usize = 22;
const SLACK: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    Null,
    Deflate,
    Snappy,
    Bzip2,
}

impl Codec {
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "null" => Some(Self::Null),
            "deflate" => Some(Self::Deflate),
            "snappy" => Some(Self::Snappy),
            "bzip2" => Some(Self::Bzip2),
            _ => None,
        }
    }

    /// A block of `size` bytes from its stored form. `room` is memory for it.
    pub fn decompress<'a>(
        self,
        stored: &'a [u8],
        size: usize,
        room: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], Damage> {
        match self {
            Self::Null if stored.len() > size => Err(Damage::SizeAtLeast {
                bytes: stored.len(),
                expected: size,
            }),
            Self::Null if stored.len() < size => Err(Damage::Size {
                bytes: stored.len(),
                expected: size,
            }),
            Self::Null => Ok(stored),
            Self::Deflate => inflate(stored, size, room),
            Self::Snappy => decompress_snappy(stored, size, room),
            Self::Bzip2 => decompress_bzip2(stored, size, room),
        }
    }
}

fn inflate<'a>(stored: &[u8], size: usize, room: &'a mut Vec<u8>) -> Result<&'a [u8], Damage> {
    check_ratio(stored, size, DEFLATE_RATIO, "deflated")?;
    // One byte more than expected shows a block that is too long.
    let target = sized(room, size + 1);
    let mut inflate = Decompress::new(false);
    let status = inflate
        .decompress(stored, target, FlushDecompress::Finish)
        .map_err(|_| Damage::Corrupt("deflated"))?;
    let bytes = inflate.total_out() as usize;
    if status == Status::StreamEnd {
        if inflate.total_in() < stored.len() as u64 {
            return Err(Damage::Trailing);
        }
    } else if bytes <= size {
        return Err(Damage::Truncated("deflated"));
    }
    match bytes {
        bytes if bytes > size => Err(Damage::SizeAtLeast {
            bytes,
            expected: size,
        }),
        bytes if bytes < size => Err(Damage::Size {
            bytes,
            expected: size,
        }),
        _ => Ok(&room[..size]),
    }
}

fn decompress_snappy<'a>(
    stored: &[u8],
    size: usize,
    room: &'a mut Vec<u8>,
) -> Result<&'a [u8], Damage> {
    let bytes = snappy_size(stored)?;
    if bytes != size as u64 {
        return Err(Damage::SnappySize {
            bytes,
            expected: size,
        });
    }
    check_ratio(stored, size, SNAPPY_RATIO, "Snappy")?;
    let target = sized(room, size);
    match snap::raw::Decoder::new().decompress(stored, target) {
        Ok(bytes) if bytes == size => Ok(target),
        _ => Err(Damage::Corrupt("Snappy")),
    }
}

/// The size that a Snappy block begins with, seven bits a byte.
fn snappy_size(stored: &[u8]) -> Result<u64, Damage> {
    let mut size = 0;
    for (place, &byte) in stored.iter().take(5).enumerate() {
        size |= u64::from(byte & 0x7F) << (7 * place);
        if byte < 0x80 {
            return Ok(size);
        }
    }
    Err(Damage::Truncated("Snappy"))
}

/// The first bytes alone: the oldest version of the reference also compresses the unused rest of its buffer.
///
/// Bzip2 has no ratio that a bomb exceeds, so memory is taken while there is something to put there.
fn decompress_bzip2<'a>(
    stored: &[u8],
    size: usize,
    room: &'a mut Vec<u8>,
) -> Result<&'a [u8], Damage> {
    room.clear();
    let wanted = size.max(1) as u64;
    BzDecoder::new(stored)
        .take(wanted)
        .read_to_end(room)
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => Damage::Truncated("bzip2"),
            _ => Damage::Corrupt("bzip2"),
        })?;
    room.get(..size).ok_or(Damage::Truncated("bzip2"))
}

fn check_ratio(
    stored: &[u8],
    expected: usize,
    ratio: usize,
    codec: &'static str,
) -> Result<(), Damage> {
    if expected > ratio * stored.len() + SLACK {
        return Err(Damage::Unlikely {
            stored: stored.len(),
            codec,
            expected,
        });
    }
    Ok(())
}

fn sized(room: &mut Vec<u8>, size: usize) -> &mut [u8] {
    if room.len() < size {
        room.resize(size, 0);
    }
    &mut room[..size]
}

/// Compare a block with the checksum behind it, whose bytes are in either order.
pub fn check_crc32(block: &[u8], stored: [u8; 4], codec: Codec) -> Result<(), Damage> {
    let computed = crc32fast::hash(block);
    if computed == u32::from_be_bytes(stored) || computed == u32::from_le_bytes(stored) {
        return Ok(());
    }
    // With the codec `null`, the reference computes the checksum after it has consumed the bytes: that of nothing.
    if codec == Codec::Null && stored == [0; 4] {
        return Ok(());
    }
    Err(Damage::Checksum { stored, computed })
}
