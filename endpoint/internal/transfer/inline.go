package transfer

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/tensor"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Small host memory of results and arguments may travel within the frame. Without a descriptor and a mapping it costs
// less, unless both sides keep the mapping. The receiver has a copy. Memory that may still be written is therefore not
// copied: memory of other processes, and memory with further references.

// stateDictTag is the head of a state dict in a payload.
var stateDictTag = message.AppendHead(nil, message.MajorTag, message.TagStateDict)

// inlines are the handles of the storages that a message carries within its frame, and the other storages.
type inlines struct {
	handles []message.Handle // one for each storage; the handles of rest have no kind
	rest    []*tensor.Storage
}

// inline copies small memory of a payload for its frame. own permits memory of this process to which only the payload
// refers; otherwise only memory is copied that has arrived in the same way. It borrows the storages. It returns nil if
// there is none. State dicts stay in shared memory, because their receivers may pass them on as a whole.
func inline(value message.RawMessage, storages []*tensor.Storage, own bool) (*inlines, error) {
	var out *inlines
	left := int64(message.MaxInline)
	for i, s := range storages {
		if s.Bytes() > left || !inlinable(s, own) {
			if out != nil {
				out.rest = append(out.rest, s)
			}
			continue
		}
		if out == nil {
			if bytes.Contains(value, stateDictTag) {
				return nil, nil
			}
			out = &inlines{rest: slices.Clone(storages[:i]), handles: make([]message.Handle, len(storages))}
		}
		content, err := contentOf(s)
		if err != nil {
			return nil, fmt.Errorf("storage %d: %w", i, err)
		}
		left -= s.Bytes()
		out.handles[i] = message.Handle{
			Kind: message.HandleInline, Device: message.UUID(s.Memory().Device().Info().UUID), Bytes: uint64(len(content)), Blob: content, File: -1,
		}
	}
	return out, nil
}

// inlinable reports whether memory has no more writers, so that a copy can replace it.
func inlinable(s *tensor.Storage, own bool) bool {
	mem := s.Memory()
	if _, arrived := mem.(*inlined); arrived {
		return true
	}
	_, mapped := mem.(driver.Mapped)
	_, lent := s.Lent()
	return own && mapped && !lent && s.Refs() == 1 && mem.Device().Info().Type == driver.CPU
}

// contentOf returns a copy of host memory.
func contentOf(s *tensor.Storage) ([]byte, error) {
	data, unpin, err := s.Memory().(driver.Mapped).Pin(false)
	if err != nil {
		return nil, err
	}
	defer unpin()
	return bytes.Clone(data), nil
}

// export exports the storages of a message. in has those within the frame.
func (in *inlines) export(storages []*tensor.Storage) (*Export, error) {
	out, err := ExportStorages(in.rest)
	if err != nil {
		return nil, err
	}
	at := 0
	for i := range in.handles {
		if !in.handles[i].Inline() {
			in.handles[i] = out.Handles[at]
			at++
		}
	}
	out.Handles, out.Storages = in.handles, storages
	return out, nil
}

// ExportOrInline is [ExportStorages] that sends small memory within the frame if agreed is set: memory that has arrived
// in this way, and with own also memory of this process to which only the payload refers.
func ExportOrInline(value message.RawMessage, storages []*tensor.Storage, agreed, own bool) (*Export, error) {
	if !agreed {
		return ExportStorages(storages)
	}
	in, err := inline(value, storages, own)
	switch {
	case err != nil:
		return nil, err
	case in == nil:
		return ExportStorages(storages)
	}
	return in.export(storages)
}

// ShareInline exports a result with small memory within the frame. It returns nil if there is none.
func (p *Slabs) ShareInline(value message.RawMessage, storages []*tensor.Storage) (*SlabExport, error) {
	in, err := inline(value, storages, true)
	if in == nil || err != nil {
		return nil, err
	}
	out, err := in.export(storages)
	if err != nil {
		return nil, err
	}
	return &SlabExport{Export: *out, Loans: Loans{slabs: p}}, nil
}

// AnyInline reports whether any handle contains the memory itself.
func AnyInline(handles []message.Handle) bool {
	return slices.ContainsFunc(handles, func(h message.Handle) bool { return h.Inline() })
}

// InlineBytes returns the size of the memory within the frame.
func InlineBytes(handles []message.Handle) (n int) {
	for i := range handles {
		if handles[i].Inline() {
			n += len(handles[i].Blob)
		}
	}
	return n
}

// ContentKey identifies memory by its bytes, in cache keys.
func ContentKey(content []byte) string {
	sum := sha256.Sum256(content)
	return "content:" + hex.EncodeToString(sum[:])
}

// inlineStorage returns the memory of a handle that contains it, as a copy.
func inlineStorage(devices Devices, h *message.Handle) (*tensor.Storage, error) {
	dev, err := devices.Find(driver.UUID(h.Device))
	if err != nil {
		return nil, err
	}
	if dev.Info().Type != driver.CPU {
		return nil, fmt.Errorf("%w: memory of %s within the frame", status.ErrInvalid, dev.Info())
	}
	return tensor.NewLentStorage(newInlined(dev, h.Blob), ""), nil
}

var errInlineNotAgreed = fmt.Errorf("%w: memory within the frame without the feature %s", status.ErrInvalid, message.FeatureInline)

// errClosed returns the error of a use after Close.
func errClosed(use string) error {
	return fmt.Errorf("%s memory that arrived within a frame: %w", use, os.ErrClosed)
}
