package keep

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

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
}

// journal appends entries to a file. It is not safe for concurrent use.
type journal struct {
	file *os.File // owned
	id   [idBytes]byte
	end  int64
	crc  uint32
}

var (
	// errNoJournal means that a file does not begin as a journal does.
	errNoJournal = errors.New("not a journal")
	// errAbandoned means that a journal was abandoned before it replaced another one.
	errAbandoned = errors.New("an abandoned journal")
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

// readJournal reads the entries of a file and passes each with its place to visit. It stops at the first incomplete or
// damaged entry and removes the rest, so that the journal can be continued. It takes the file if it succeeds.
func readJournal(file *os.File, visit func(e entry, at place) error) (*journal, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() == 0 {
		return nil, errAbandoned
	}
	var head [headerBytes]byte
	if _, err := file.ReadAt(head[:], 0); err != nil || string(head[:len(journalMagic)]) != journalMagic {
		return nil, errNoJournal
	}
	j := &journal{file: file, end: int64(headerBytes)}
	copy(j.id[:], head[len(journalMagic):])
	for {
		payload, crc, ok := j.next(info.Size())
		if !ok {
			break
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
	if err := file.Truncate(j.end); err != nil {
		return nil, fmt.Errorf("cut the journal behind its last entry: %w", err)
	}
	return j, nil
}

// place is the position of a payload in a journal.
type place struct {
	offset int64
	bytes  int
}

// next reads the entry at the end. ok is false if it is incomplete or damaged.
func (j *journal) next(size int64) (payload []byte, crc uint32, ok bool) {
	var head [entryOverhead]byte
	if size-j.end < entryOverhead {
		return nil, 0, false
	}
	if _, err := j.file.ReadAt(head[:], j.end); err != nil {
		return nil, 0, false
	}
	n := int64(binary.LittleEndian.Uint32(head[:]))
	if n == 0 || n > min(maxEntry, size-j.end-entryOverhead) {
		return nil, 0, false
	}
	payload = make([]byte, n)
	if _, err := j.file.ReadAt(payload, j.end+entryOverhead); err != nil {
		return nil, 0, false
	}
	crc = j.sum(payload)
	return payload, crc, crc == binary.LittleEndian.Uint32(head[4:])
}

// sum returns the CRC of the next entry.
func (j *journal) sum(payload []byte) uint32 {
	var before [4]byte
	binary.LittleEndian.PutUint32(before[:], j.crc)
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
	if _, err := j.file.WriteAt(append(b, payload...), j.end); err != nil {
		_ = j.file.Truncate(j.end) // best effort: the next entry overwrites the rest
		return place{}, fmt.Errorf("write the journal: %w", err)
	}
	at := place{j.end + entryOverhead, len(payload)}
	j.end, j.crc = at.offset+int64(at.bytes), crc
	return at, nil
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
	if _, err := j.file.ReadAt(b, at.offset); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	return b, nil
}
