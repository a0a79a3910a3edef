package persist

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// A journal is a file of a header and entries. It is written in place: the store holds another descriptor of the same
// file, so an entry survives this process as soon as the write has returned.
//
//	header: magic (8 bytes), id of the catalog (16 bytes)
//	entry:  length of the payload (4 bytes), CRC-32C (4 bytes), payload (CBOR)
//
// Numbers are little-endian. The CRC covers the CRC of the previous entry and the payload, so bytes of an earlier
// generation are never read as an entry. A journal that was cut at any byte has all entries before it.
const (
	journalMagic  = "STKEEP1\n"
	idBytes       = 16
	headerBytes   = len(journalMagic) + idBytes
	entryOverhead = 8
	// maxEntry limits the size of one entry that is read. An entry holds the manifest of a version, which fits a frame.
	maxEntry = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// entryKind is the kind of a change.
type entryKind uint8

const (
	entryPublished entryKind = iota + 1 // a version
	entryWithdrawn                      // all versions of a name
	entryFreed                          // the memory of one version
	entryNumber                         // the highest number of a name without versions
	entryFloor                          // new names start above this number
	entryDigests                        // the digests of one version
)

// entry is one change of the catalog.
type entry struct {
	Kind entryKind `cbor:"1,keyasint"`
	// ID identifies the version's descriptors in the store, for entryPublished, entryFreed and entryDigests.
	ID      uint64 `cbor:"2,keyasint,omitempty"`
	Name    string `cbor:"3,keyasint,omitempty"`
	Version uint64 `cbor:"4,keyasint,omitempty"`
	// The rest belongs to entryPublished.
	At        int64              `cbor:"5,keyasint,omitempty"` // nanoseconds since 1970, UTC
	Publisher message.Origin     `cbor:"6,keyasint,omitempty"`
	SourceID  string             `cbor:"7,keyasint,omitempty"`
	Digests   bool               `cbor:"8,keyasint,omitempty"`
	Manifest  message.RawMessage `cbor:"9,keyasint,omitempty"`
	Handles   []message.Handle   `cbor:"10,keyasint,omitempty"`
	Files     int                `cbor:"11,keyasint,omitempty"` // number of descriptors
	Retain    *message.Retention `cbor:"12,keyasint,omitempty"` // of the name
	// Tensors holds the digests of the tensors, 32 bytes each in the order of the manifest, for entryDigests.
	Tensors []byte `cbor:"13,keyasint,omitempty"`
	// Parts is the number of parts of a version, for entryPublished.
	Parts int `cbor:"14,keyasint,omitempty"`
}

// journal appends entries to a file. It is not safe for concurrent use.
type journal struct {
	file *os.File // owned
	id   [idBytes]byte
	end  int64
	crc  uint32

	reserved int64 // size of the allocated space
}

var (
	// errNoJournal means that a file does not begin as a journal does.
	errNoJournal = errors.New("not a journal")
	// errAbandoned means that a journal was abandoned before it replaced another one.
	errAbandoned = errors.New("an abandoned journal")
	// errDamaged means that an entry before the last one is damaged.
	errDamaged = errors.New("a damaged entry before the last one")
	// errEntry means that a complete entry has another format.
	errEntry = errors.New("an entry of another version of this program")
)

// newJournal writes the header to an empty file, which it takes.
func newJournal(file *os.File, id [idBytes]byte) (*journal, error) {
	if _, err := file.WriteAt(append([]byte(journalMagic), id[:]...), 0); err != nil {
		return nil, fmt.Errorf("write the journal: %w", err)
	}
	return &journal{file: file, id: id, end: int64(headerBytes)}, nil
}

// readJournal reads the entries of a file and passes each with its place to visit. If the last entry is incomplete or
// damaged, it removes that entry, so that the journal can be continued. Any other damage and any read error fails and
// leaves the file as it is. It takes the file if it succeeds.
func readJournal(file *os.File, visit func(e entry, at place) error) (*journal, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() == 0 {
		return nil, errAbandoned
	}
	var head [headerBytes]byte
	if info.Size() < int64(headerBytes) {
		return nil, errNoJournal
	}
	if err := readFull(file, head[:], 0); err != nil {
		return nil, err
	}
	if string(head[:len(journalMagic)]) != journalMagic {
		return nil, errNoJournal
	}
	j := &journal{file: file, end: int64(headerBytes)}
	copy(j.id[:], head[len(journalMagic):])
	for {
		payload, crc, err := j.next(info.Size())
		if errors.Is(err, errTorn) {
			break
		}
		if err != nil {
			return nil, err
		}
		var e entry
		if err := message.Unmarshal(payload, &e); err != nil {
			return nil, fmt.Errorf("%w: %w", errEntry, err)
		}
		if err := visit(e, place{j.end + entryOverhead, len(payload)}); err != nil {
			return nil, err
		}
		j.end, j.crc = j.end+entryOverhead+int64(len(payload)), crc
	}
	if j.end < info.Size() {
		if err := file.Truncate(j.end); err != nil {
			return nil, fmt.Errorf("cut the journal behind its last entry: %w", err)
		}
	}
	return j, nil
}

// readFull fills b from a file at an offset. The file must have these bytes.
func readFull(file *os.File, b []byte, offset int64) error {
	err := status.Fault("journal read")
	if err == nil {
		var n int
		if n, err = file.ReadAt(b, offset); n == len(b) {
			return nil
		}
	}
	return fmt.Errorf("read %d bytes of the journal at %d: %w", len(b), offset, err)
}

// place is the position of a payload in a journal.
type place struct {
	offset int64
	bytes  int
}

// errTorn means that no complete entry follows: the file ends, or its last entry was not written to its end.
var errTorn = errors.New("no further entry")

// next reads the entry at the end. It fails with errTorn at the end of the journal, and with errDamaged if an entry is
// damaged that is not the last one.
func (j *journal) next(size int64) (payload []byte, crc uint32, err error) {
	rest := size - j.end
	if rest < entryOverhead {
		return nil, 0, errTorn
	}
	var head [entryOverhead]byte
	if err := readFull(j.file, head[:], j.end); err != nil {
		return nil, 0, err
	}
	n := int64(binary.LittleEndian.Uint32(head[:]))
	if n > 0 && n <= min(maxEntry, rest-entryOverhead) {
		payload = make([]byte, n)
		if err := readFull(j.file, payload, j.end+entryOverhead); err != nil {
			return nil, 0, err
		}
		if crc = sumAfter(j.crc, payload); crc == binary.LittleEndian.Uint32(head[4:]) {
			return payload, crc, nil
		}
	}
	tail := make([]byte, rest)
	if err := readFull(j.file, tail, j.end); err != nil {
		return nil, 0, err
	}
	if entryFollows(tail, j.crc) {
		return nil, 0, fmt.Errorf("%w at %d", errDamaged, j.end)
	}
	return nil, 0, errTorn
}

// entryFollows reports whether a valid entry is behind the damaged one at the start of the tail. before is the CRC of the
// entry in front of it. The CRC of an entry covers that of the previous one, so bytes of a manifest do not look like one.
func entryFollows(tail []byte, before uint32) bool {
	stored, end := binary.LittleEndian.Uint32(tail[4:]), 0
	var computed uint32 // differs from stored if only that is damaged
	if payload, _ := entryAt(tail, 0); payload != nil {
		computed, end = sumAfter(before, payload), entryOverhead+len(payload)
	}
	for at := 1; at+entryOverhead < len(tail); at++ {
		payload, crc := entryAt(tail, at)
		if payload == nil {
			continue
		}
		if crc == sumAfter(stored, payload) || at == end && crc == sumAfter(computed, payload) {
			return true
		}
		if next, of := entryAt(tail, at+entryOverhead+len(payload)); next != nil && of == sumAfter(crc, next) {
			return true
		}
	}
	return false
}

// entryAt returns the payload and the CRC of bytes that have the form of an entry, or nil.
func entryAt(tail []byte, at int) (payload []byte, crc uint32) {
	if at+entryOverhead+3 > len(tail) {
		return nil, 0
	}
	n, rest := int64(binary.LittleEndian.Uint32(tail[at:])), tail[at+entryOverhead:]
	// An entry is a map that begins with its kind.
	if n < 3 || n > int64(len(rest)) || rest[0]&0xe0 != 0xa0 || rest[1] != 1 || rest[2] == 0 || rest[2] > byte(entryDigests) {
		return nil, 0
	}
	return rest[:n], binary.LittleEndian.Uint32(tail[at+4:])
}

// sum returns the CRC of the next entry.
func (j *journal) sum(payload []byte) uint32 {
	return sumAfter(j.crc, payload)
}

// sumAfter returns the CRC of an entry behind one with the given CRC.
func sumAfter(crc uint32, payload []byte) uint32 {
	var before [4]byte
	binary.LittleEndian.PutUint32(before[:], crc)
	return crc32.Update(crc32.Checksum(before[:], castagnoli), castagnoli, payload)
}

// append writes an entry. After an error the journal is unchanged.
func (j *journal) append(e entry) (place, error) {
	payload, err := message.Marshal(e)
	if err != nil {
		return place{}, err
	}
	return j.appendPayload(payload)
}

// appendPayload writes an encoded entry with one system call.
func (j *journal) appendPayload(payload []byte) (place, error) {
	crc := j.sum(payload)
	b := make([]byte, entryOverhead, entryOverhead+len(payload))
	binary.LittleEndian.PutUint32(b, uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[4:], crc)
	err := status.Fault("journal write")
	if err == nil {
		_, err = j.file.WriteAt(append(b, payload...), j.end)
	}
	if err != nil {
		_ = j.file.Truncate(j.end) // best effort: the next entry overwrites the rest
		return place{}, fmt.Errorf("write the journal: %w", err)
	}
	at := place{j.end + entryOverhead, len(payload)}
	j.end, j.crc = at.offset+int64(at.bytes), crc
	return at, nil
}

// reserve allocates n bytes behind the end, if the file system can.
func (j *journal) reserve(n int64) error {
	if j.end+n <= j.reserved {
		return nil
	}
	const more = 64 << 10 // so that this happens rarely
	end := j.end + n + more
	err := allocate(j.file, end)
	if err != nil {
		end = j.end + n
		err = allocate(j.file, end)
	}
	if err == nil {
		j.reserved = end
	}
	return err
}

// abandon makes a journal that may be in the store invalid, because entries are no longer written to it.
func (j *journal) abandon() error {
	err := j.file.Truncate(0)
	if err == nil {
		err = j.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("abandon a journal: %w", err)
	}
	return nil
}

// payload reads the payload at a place.
func (j *journal) payload(at place) ([]byte, error) {
	b := make([]byte, at.bytes)
	return b, readFull(j.file, b, at.offset)
}
