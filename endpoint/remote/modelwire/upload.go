package modelwire

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"sync"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/admission"
	"github.com/sharedtensor/sharedtensor/module"
)

// Errors of uploads.
var (
	// ErrChecksum reports a piece whose bytes were damaged.
	ErrChecksum = admission.NewError(admission.Damaged, "wrong checksum")
	// ErrIncomplete reports a transfer that ended before its tensors were complete.
	ErrIncomplete = admission.NewError(admission.Incomplete, "incomplete")
	// ErrTakenOver ends a call whose upload a later call continues.
	ErrTakenOver = fmt.Errorf("%w: another call continues this transfer", ErrInvalid)
)

// Checksum returns crc extended by p. The checksum of a piece is the CRC-32C of the tensor's bytes up to its end.
func Checksum(crc uint32, p []byte) uint32 { return crc32.Update(crc, castagnoli, p) }

// castagnoli is the table of CRC-32C.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Position is the received beginning of a tensor.
type Position struct {
	// Tensor is the position in the manifest, and Offset the number of received bytes.
	Tensor int
	Offset int64
	// CRC32C is the checksum of the received bytes.
	CRC32C uint32
}

// Piece is a run of a tensor's bytes that follows the bytes that were received before.
type Piece struct {
	Position
	// Data holds the bytes from Offset, in one or more buffers. CRC32C is the checksum at their end.
	Data [][]byte
}

func (p *Piece) bytes() (n int64) {
	for _, b := range p.Data {
		n += int64(len(b))
	}
	return n
}

// Progress is the received beginning of each tensor of a manifest.
type Progress struct {
	manifest  *Manifest
	positions []Position
}

func newProgress(m *Manifest) Progress {
	p := Progress{m, make([]Position, len(m.Tensors))}
	for i := range p.positions {
		p.positions[i].Tensor = i
	}
	return p
}

// accept checks that a piece continues its tensor. A piece at offset 0 restarts the tensor.
func (p *Progress) accept(piece *Piece) (*Position, *Entry, error) {
	if piece.Tensor < 0 || piece.Tensor >= len(p.positions) {
		return nil, nil, fmt.Errorf("%w: tensor %d of %d", ErrInvalid, piece.Tensor, len(p.positions))
	}
	at, e := &p.positions[piece.Tensor], &p.manifest.Tensors[piece.Tensor]
	if piece.Offset == 0 {
		*at = Position{Tensor: piece.Tensor}
	}
	if n := piece.bytes(); piece.Offset != at.Offset || n > e.Bytes-at.Offset {
		return nil, nil, fmt.Errorf("%w: tensor %q: %d bytes at %d, where %d of %d are there", ErrInvalid, e.Name, n, piece.Offset, at.Offset, e.Bytes)
	}
	return at, e, nil
}

// finish verifies the checksum of an accepted piece, whose bytes have the checksum crc, and records the piece.
func (p *Progress) finish(piece *Piece, at *Position, crc uint32) error {
	if crc != piece.CRC32C {
		return fmt.Errorf("%w: tensor %q at %d: %08x instead of %08x", ErrChecksum, p.manifest.Tensors[piece.Tensor].Name, at.Offset, crc, piece.CRC32C)
	}
	at.Offset, at.CRC32C = at.Offset+piece.bytes(), crc
	return nil
}

// missing returns an error that names an incomplete tensor, or nil if there is none.
func (p *Progress) missing() error {
	for i := range p.positions {
		if e := &p.manifest.Tensors[i]; p.positions[i].Offset < e.Bytes {
			return fmt.Errorf("%w: tensor %q has %d of %d bytes", ErrIncomplete, e.Name, p.positions[i].Offset, e.Bytes)
		}
	}
	return nil
}

// begun returns the positions at which tensors have begun.
func (p *Progress) begun() []Position {
	return slices.DeleteFunc(slices.Clone(p.positions), func(at Position) bool { return at.Offset == 0 })
}

// sums returns the checksum of each tensor.
func (p *Progress) sums() []uint32 {
	sums := make([]uint32, len(p.positions))
	for i := range p.positions {
		sums[i] = p.positions[i].CRC32C
	}
	return sums
}

// Upload is a version that is being received in pieces. One call at a time writes to it. A later call for the same
// transfer takes over from an earlier one, whose connection may have broken unnoticed.
//
//	open ──> complete ──> finished (its tensors are taken)
//	  └────> abandoned
type Upload struct {
	manifest *Manifest
	arrival  *Arrival
	eager    bool // the device has allocated all memory, so all of it is charged

	mu       sync.Mutex
	charge   *admission.Charge // its received bytes
	charged  []int64           // charged bytes of each tensor; a restart frees no memory
	writer   int               // number of the call that may write; 0 if the upload has ended
	writers  int
	progress Progress
}

// describedCost is the charged memory for the description of a tensor.
const describedCost = 512

// NewUpload allocates the memory for a version without tied tensors. It takes charge, also when it fails. An eager
// device allocates the memory now, so the full size is charged. Other devices allocate it as it is written.
func NewUpload(m *Manifest, dev driver.Device, charge *admission.Charge, eager bool) (*Upload, error) {
	claimed := int64(len(m.Tensors)) * describedCost
	if eager {
		claimed += m.Bytes
	}
	if err := charge.Add(claimed); err != nil {
		charge.Close()
		return nil, fmt.Errorf("%w: %w", ErrLimit, err)
	}
	arrival, err := NewArrival(dev, m, 0)
	if err != nil {
		charge.Close()
		return nil, err
	}
	return &Upload{manifest: m, arrival: arrival, eager: eager, charge: charge, charged: make([]int64, len(m.Tensors)), progress: newProgress(m)}, nil
}

// Manifest returns the description of the version.
func (u *Upload) Manifest() *Manifest { return u.manifest }

// Begin makes the caller the only writer and returns the positions at which to resume.
func (u *Upload) Begin() (writer int, resume []Position, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.writers > 0 && u.writer == 0 {
		return 0, nil, fmt.Errorf("%w: the transfer has ended", ErrInvalid)
	}
	u.writers++
	u.writer = u.writers
	return u.writer, u.progress.begun(), nil
}

// Positions returns the received beginnings of tensors.
func (u *Upload) Positions() []Position {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.progress.begun()
}

// Done returns the number of received bytes.
func (u *Upload) Done() (bytes int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range u.progress.positions {
		bytes += u.progress.positions[i].Offset
	}
	return bytes
}

// Write copies a piece to its place and verifies its checksum. It borrows the piece. It fails with ErrTakenOver if
// another call is the writer, and with ErrInvalid, ErrChecksum or ErrLimit.
func (u *Upload) Write(writer int, piece *Piece) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.writer != writer {
		return ErrTakenOver
	}
	at, e, err := u.progress.accept(piece)
	if err != nil {
		return err
	}
	if more := at.Offset + piece.bytes() - u.charged[piece.Tensor]; more > 0 && !u.eager {
		if err := u.charge.Add(more); err != nil {
			return fmt.Errorf("%w: %w", ErrLimit, err)
		}
		u.charged[piece.Tensor] += more
	}
	crc, offset := at.CRC32C, at.Offset
	for _, b := range piece.Data {
		if e.Bytes > 0 {
			if err := u.arrival.Tensors[piece.Tensor].Store(offset, b); err != nil {
				return err
			}
		}
		crc, offset = Checksum(crc, b), offset+int64(len(b))
	}
	return u.progress.finish(piece, at, crc)
}

// Missing returns an error that names an incomplete tensor, or nil if there is none.
func (u *Upload) Missing() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.progress.missing()
}

// Finish ends a complete upload and returns its tensors with their charge, owned by the caller. Only the current writer may call
// it.
func (u *Upload) Finish(writer int) (*admission.Held[*module.StateDict], error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.writer != writer {
		return nil, ErrTakenOver
	}
	u.writers++
	u.writer = 0
	return admission.Hold(u.arrival.Take(), u.charge), nil
}

// Abandon frees the memory, even if a call is writing. It does nothing after Finish.
func (u *Upload) Abandon() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.writers > 0 && u.writer == 0 {
		return
	}
	u.writers++
	u.writer = 0
	u.charge.Close()
	_ = u.arrival.Close() // best effort: the version is not used
}

// Identity returns a digest of everything in a manifest but its version, to recognize repeated transfers.
func (m *Manifest) Identity() (digest Sum) {
	h := sha256.New()
	text := func(s string) {
		_ = binary.Write(h, binary.LittleEndian, uint64(len(s))) // a hash never fails
		_, _ = io.WriteString(h, s)
	}
	text(m.Name)
	_ = binary.Write(h, binary.LittleEndian, uint64(len(m.Tensors)))
	for i := range m.Tensors {
		e := &m.Tensors[i]
		text(e.Name)
		text(e.DType.String())
		_ = binary.Write(h, binary.LittleEndian, uint64(len(e.Shape)))
		_ = binary.Write(h, binary.LittleEndian, []int64(e.Shape))
	}
	for _, key := range slices.Sorted(maps.Keys(m.Metadata)) {
		text(key)
		text(m.Metadata[key])
	}
	return Sum(h.Sum(nil))
}

// errOtherBytes reports an id of a transfer with other content.
var errOtherBytes = errors.New("was used for another set: use a new id")
