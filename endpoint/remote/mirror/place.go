package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror/internal/store"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

// headBytes is the size of the first read of a file, which should contain its header.
const headBytes = 256 << 10

// found is a model at a place with validated headers.
type found struct {
	*store.Model
	model    *safetensors.Model
	heads    [][]byte // the bytes before the tensors, for each file
	manifest *modelwire.Manifest
}

// find returns the place's current version. The caller closes it.
func (m *Mirror) find(ctx context.Context) (out *store.Model, err error) {
	err = m.attempts.again(ctx, func() (bool, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, m.options.Stall, fmt.Errorf("%w for %v", ErrStalled, m.options.Stall))
		defer cancel()
		out, err = m.place.Find(ctx)
		return false, err
	})
	return out, err
}

// pullPlace makes one attempt to pull the place's current version.
func (m *Mirror) pullPlace(ctx context.Context) (result Result, err error) {
	begin, moved := time.Now(), m.attempts.moved.Load()
	at, err := m.find(ctx)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, at.Close()) }()
	if err := m.refreshBase(ctx); err != nil {
		return result, err
	}
	if err := m.digestBase(ctx, modelwire.SHA256, m.wantsDigests()); err != nil {
		return result, err
	}
	kind := EventUnchanged
	if m.base == nil || m.base.version == 0 || m.base.address != at.Source {
		kind = EventPublished
		if err := m.buildPlace(ctx, at, moved, &result); err != nil {
			return result, err
		}
	}
	result.Name, result.Version, result.Unchanged = m.options.Name, m.base.version, kind == EventUnchanged
	result.Source, result.Revision, result.Digest = m.options.Source, at.Source, m.base.digest().String()
	result.Tensors, result.Bytes = len(m.base.manifest.Tensors), m.base.manifest.Bytes
	result.Moved, result.Seconds = m.attempts.moved.Load()-moved, time.Since(begin).Seconds()
	if err := m.checkDigest(m.base.digest()); err != nil {
		return result, err
	}
	m.emit(Event{Kind: kind, Done: result.Bytes, Total: result.Bytes, Moved: result.Moved, Result: &result})
	return result, nil
}

// wantsDigests reports whether digests of tensors must be computed. Places provide none, or only digests of files.
func (m *Mirror) wantsDigests() bool {
	return m.options.Digests || m.options.Digest != (modelwire.Digest{})
}

// buildPlace publishes the model found as the next version.
func (m *Mirror) buildPlace(ctx context.Context, at *store.Model, moved int64, result *Result) error {
	f, err := m.readHeads(ctx, at)
	if err != nil {
		return err
	}
	err = m.build(ctx, f.manifest, moved, at.Source, func(a *modelwire.Arrival) error {
		if err := m.fillPlace(ctx, f, a, moved, result); err != nil {
			return err
		}
		return m.checkDigest(f.manifest.Digest())
	})
	if err != nil {
		return err
	}
	m.base.files = map[string]bool{}
	for _, file := range at.Files {
		m.base.files[file.Identity] = true
	}
	return nil
}

// readHeads reads the headers of all files concurrently and combines them to one model.
func (m *Mirror) readHeads(ctx context.Context, at *store.Model) (*found, error) {
	f := &found{Model: at, heads: make([][]byte, len(at.Files))}
	shards, readers := make([]safetensors.Shard, len(at.Files)), make([]*headReader, len(at.Files))
	for i, file := range at.Files {
		readers[i] = &headReader{ctx: ctx, file: file, attempts: m.attempts}
		shards[i] = safetensors.Shard{Path: file.Path, Source: readers[i], Bytes: file.Bytes}
	}
	err := modelwire.Parallel(ctx, m.options.Connections, len(readers), func(ctx context.Context, i int) error {
		return readers[i].fetch(ctx, min(headBytes, at.Files[i].Bytes))
	})
	if err != nil {
		return nil, err
	}
	var index *safetensors.Index
	if at.Index != nil {
		if index, err = safetensors.ParseIndex(at.Index); err != nil {
			return nil, fmt.Errorf("%s: %w: %w", at.Source, ErrSource, err)
		}
	}
	if f.model, err = safetensors.NewShards(at.Source, index, shards); err != nil {
		for _, r := range readers {
			if r.err != nil {
				return nil, r.err
			}
		}
		return nil, fmt.Errorf("%w: %w", ErrSource, err)
	}
	for i, file := range f.model.Files {
		f.heads[i] = readers[i].have[:file.Header.DataOffset]
	}
	f.manifest, err = modelwire.ManifestOfFile(f.model, modelwire.Limits{Bytes: m.options.MaxBytes})
	return f, refusal(err)
}

// headReader reads and keeps the beginning of a file, so that the file's digest covers the validated bytes.
type headReader struct {
	ctx      context.Context
	file     *store.File
	attempts *attempts
	have     []byte
	err      error // error of the place
}

// ReadAt implements io.ReaderAt.
func (h *headReader) ReadAt(p []byte, off int64) (int, error) {
	if need := off + int64(len(p)); need > int64(len(h.have)) {
		if h.err = h.fetch(h.ctx, min(need, h.file.Bytes)); h.err != nil {
			return 0, h.err
		}
	}
	n := copy(p, h.have[min(off, int64(len(h.have))):])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// fetch ensures that the first n bytes are available.
func (h *headReader) fetch(ctx context.Context, n int64) error {
	if n == 0 {
		return nil
	}
	err := h.attempts.again(ctx, func() (bool, error) {
		body, err := h.attempts.open(ctx, func(ctx context.Context) (io.ReadCloser, error) { return h.file.Open(ctx, 0, n) })
		if err != nil {
			return false, err
		}
		defer body.Close()
		head := make([]byte, n)
		if _, err := io.ReadFull(body, head); err != nil {
			return false, err
		}
		h.have = head
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", h.file.Path, err)
	}
	return nil
}
