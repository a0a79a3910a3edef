package rl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
	"github.com/sharedtensor/sharedtensor/module"
)

// objectChunk is the number of bytes of parameters in one message.
const objectChunk = 512 << 10

// Parameters is one version of a state dict. All users in the process share its memory. Each user closes its own
// Parameters.
type Parameters struct {
	version int64
	shared  bool
	inner   *sharedParameters
	once    sync.Once
}

// sharedParameters counts the users of one version.
type sharedParameters struct {
	sd     *module.StateDict
	handle *endpoint.Handle // nil if this process owns the bytes
	mu     sync.Mutex
	users  int
}

// Version returns the version. Versions count from 0.
func (p *Parameters) Version() int64 { return p.version }

// Shared reports whether the bytes are in the owner's memory, which is read-only.
func (p *Parameters) Shared() bool { return p.shared }

// StateDict returns the tensors. Borrowed: they are valid until Close.
func (p *Parameters) StateDict() *module.StateDict { return p.inner.sd }

// Close releases this reference to the parameters. Their memory is released with the last reference. A second call does
// nothing.
func (p *Parameters) Close() error {
	var err error
	p.once.Do(func() { err = p.inner.release() })
	return err
}

func (p *Parameters) clone() *Parameters {
	p.inner.mu.Lock()
	defer p.inner.mu.Unlock()
	p.inner.users++
	return &Parameters{version: p.version, shared: p.shared, inner: p.inner}
}

func (s *sharedParameters) release() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users--
	if s.users > 0 {
		return nil
	}
	if s.handle != nil {
		return s.handle.Close()
	}
	return s.sd.Close()
}

func openParameters(ctx context.Context, js jetstream.JetStream, o Options) (*natslink.Objects, error) {
	storage := jetstream.FileStorage
	if o.Memory {
		storage = jetstream.MemoryStorage
	}
	return natslink.OpenObjects(ctx, js, jetstream.ObjectStoreConfig{
		Bucket: "RL_" + o.Run + "_parameters", Description: "parameters of a sharedtensor training run", Storage: storage, Replicas: o.Replicas,
	})
}

// upload streams the bytes of a state dict to an object with a new name and returns their number. The object store
// verifies their digest when they are read.
func (r *run) upload(ctx context.Context, name string, sd *module.StateDict) (int64, error) {
	meta := jetstream.ObjectMeta{Name: name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: objectChunk}}
	info, err := natslink.PutObject(ctx, r.objects, meta, func() io.ReadCloser {
		out, in := io.Pipe()
		go func() {
			in.CloseWithError(module.SaveTo(ctx, in, sd, module.SaveOptions{Format: module.FormatSafetensors}))
		}()
		return &fullReader{out}
	})
	if err != nil {
		return 0, err
	}
	return int64(info.Size), nil
}

// fullReader fills each buffer, because the object store sends the result of each Read as one message.
type fullReader struct{ io.ReadCloser }

func (f *fullReader) Read(p []byte) (int, error) {
	n, err := io.ReadFull(f.ReadCloser, p)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil // the next Read returns io.EOF
	}
	return n, err
}

// fetch returns the parameters of a pointer. It maps them if this process has the same owner, and otherwise fetches
// their bytes.
func (r *run) fetch(ctx context.Context, p pointer) (*Parameters, error) {
	if r.opts.Owner != nil && p.Server != "" && r.opts.Owner.ServerID() == p.Server {
		handle, err := r.opts.Owner.Acquire(ctx, p.Model, endpoint.AcquireOptions{Version: p.ModelVersion})
		if err == nil {
			inner := &sharedParameters{sd: handle.StateDict(), handle: handle, users: 1}
			return &Parameters{version: p.Version, shared: true, inner: inner}, nil
		}
		if p.Object == "" {
			return nil, fmt.Errorf("parameters %d of the run %q: %w", p.Version, r.opts.Run, err)
		}
	}
	if p.Object == "" {
		return nil, fmt.Errorf("parameters %d of the run %q: %w: they are only in the memory of owner %s", p.Version, r.opts.Run, ErrUnreachable, p.Server)
	}
	sd, err := r.download(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("parameters %d of the run %q: %w", p.Version, r.opts.Run, err)
	}
	return &Parameters{version: p.Version, inner: &sharedParameters{sd: sd, users: 1}}, nil
}

// download receives the bytes of parameters in new memory. NATS verifies their digest at their end.
func (r *run) download(ctx context.Context, p pointer) (sd *module.StateDict, err error) {
	err = natslink.StreamObject(ctx, r.objects, p.Object, func(info *jetstream.ObjectInfo, body io.Reader) error {
		if int64(info.Size) != p.Bytes {
			return fmt.Errorf("the object has %d bytes, but %d were published", info.Size, p.Bytes)
		}
		if sd != nil { // of an attempt that was interrupted at the end
			_ = sd.Close() // best effort: another attempt follows
		}
		var err error
		sd, err = modelwire.ReadFile(ctx, r.opts.Device, body, modelwire.FileLimits{Size: p.Bytes, Header: p.Bytes})
		return err
	})
	if err != nil && sd != nil {
		err, sd = errors.Join(err, sd.Close()), nil
	}
	return sd, err
}
