package stream

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
)

// Models is the models of an owner as a Source and a Sink: what clients put is published, what they get is mapped from
// the owner and sent from there.
//
// Requests of kpu.torch.Service name a model by the parameters "model", "version" and "tensor"; without the last one
// they get its tensors in order. What ReceiveTensors takes is published under "model" of the metadata, one tensor a
// version, or else as "received-" and the id of the tensor, of which the last Keep stay published.
type Models struct {
	// Client returns the connection to the owner, borrowed.
	Client func() (*endpoint.Client, error)
	// Bind returns a context that also ends when the owner goes away; nil for requests that wait until it is back.
	Bind func(ctx context.Context) (context.Context, context.CancelFunc)
	// CheckWrite says whether the sender may publish; nil for everybody.
	CheckWrite func(ctx context.Context) error
	// Keep is how many tensors without a model stay published; 64.
	Keep int
	// Logger gets what operators should know; nil for slog.Default().
	Logger *slog.Logger

	mu      sync.Mutex
	unnamed []string // models that were made for single tensors, the oldest first
}

// unnamedPrefix is what the names of models for single tensors begin with.
const unnamedPrefix = "received-"

// Set acquires a model. Its lease goes back when the set is closed.
func (m *Models) Set(ctx context.Context, request Request) (*Set, error) {
	if request.Name == "" {
		return nil, fmt.Errorf("%w: name a model", ErrInvalid)
	}
	client, err := m.Client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := m.bind(ctx)
	defer cancel()
	acquire := client.Acquire
	if request.Version != 0 {
		acquire = func(ctx context.Context, name string) (*endpoint.Handle, error) {
			return client.AcquireWith(ctx, name, endpoint.AcquireOptions{Version: request.Version})
		}
	}
	handle, err := acquire(ctx, request.Name)
	if err != nil {
		return nil, err
	}
	sd, err := selected(handle.StateDict(), request.Tensors)
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("model %q: %w", request.Name, err)
	}
	set := &Set{Name: request.Name, Version: handle.Version(), Tensors: sd, release: handle.Close}
	which := sha256.Sum256([]byte(strings.Join(sd.Names(), "\x00")))
	set.ID = fmt.Sprintf("%s/%s@%d/%s", handle.ServerID(), request.Name, handle.Version(), hex.EncodeToString(which[:8]))
	return set, nil
}

func (m *Models) bind(ctx context.Context) (context.Context, context.CancelFunc) {
	if m.Bind == nil {
		return ctx, func() {}
	}
	return m.Bind(ctx)
}

// selected returns an owned state dict with the tensors of those names, or all of them.
func selected(from *module.StateDict, names []string) (*module.StateDict, error) {
	if len(names) == 0 {
		return from.Clone(), nil
	}
	sd := module.NewStateDict()
	sd.Metadata = from.Metadata
	for _, name := range names {
		t, ok := from.Get(name)
		if !ok {
			sd.Close()
			return nil, fmt.Errorf("%w: tensor %q", ErrNotFound, name)
		}
		if err := sd.Set(name, t.Clone()); err != nil {
			sd.Close()
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	return sd, nil
}

// Tensor returns one tensor of a model.
func (m *Models) Tensor(ctx context.Context, index int, parameters map[string]string) (*Item, error) {
	request := Request{Name: parameters["model"], Parameters: parameters}
	if request.Name == "" {
		return nil, fmt.Errorf(`%w: name a model by the parameter "model"`, ErrInvalid)
	}
	if text := parameters["version"]; text != "" {
		var err error
		if request.Version, err = strconv.ParseUint(text, 10, 64); err != nil {
			return nil, fmt.Errorf("%w: version %q is no number", ErrInvalid, text)
		}
	}
	set, err := m.Set(ctx, request)
	if err != nil {
		return nil, err
	}
	defer set.Close()
	names := set.Tensors.Names()
	name := parameters["tensor"]
	if name == "" {
		if index >= len(names) {
			return nil, fmt.Errorf("%w: model %q has %d tensors", ErrNotFound, request.Name, len(names))
		}
		name = names[index]
	}
	t, ok := set.Tensors.Get(name)
	if !ok {
		return nil, fmt.Errorf("%w: model %q has no tensor %q", ErrNotFound, request.Name, name)
	}
	metadata := map[string]string{"model": request.Name, "version": fmt.Sprint(set.Version), "name": name}
	return &Item{ID: name, Tensor: t.Clone(), Metadata: metadata}, nil
}

// Receive publishes a set.
func (m *Models) Receive(ctx context.Context, set *Set) (uint64, error) {
	defer set.Close()
	if m.CheckWrite != nil {
		if err := m.CheckWrite(ctx); err != nil {
			return 0, err
		}
	}
	client, err := m.Client()
	if err != nil {
		return 0, err
	}
	ctx, cancel := m.bind(ctx)
	defer cancel()
	name := set.Name
	if model := set.Tensors.Metadata["model"]; model != "" && set.single {
		name = model
	} else if set.single {
		name = unnamedPrefix + set.ID
	}
	if name == "" {
		return 0, fmt.Errorf("%w: name the set, it becomes a model of that name", ErrInvalid)
	}
	version, err := client.PublishWith(ctx, name, set.Tensors, endpoint.PublishOptions{Source: "stream"})
	if err == nil && set.single && strings.HasPrefix(name, unnamedPrefix) {
		m.withdrawOldest(ctx, client, name)
	}
	return version, err
}

// withdrawOldest notes a model for a single tensor and withdraws the one that is too many.
func (m *Models) withdrawOldest(ctx context.Context, client *endpoint.Client, name string) {
	keep := m.Keep
	def(&keep, 64)
	m.mu.Lock()
	m.unnamed = append(slices.DeleteFunc(m.unnamed, func(n string) bool { return n == name }), name)
	oldest := ""
	if len(m.unnamed) > keep {
		oldest = m.unnamed[0]
		m.unnamed = m.unnamed[1:]
	}
	m.mu.Unlock()
	if oldest == "" {
		return
	}
	if err := client.Withdraw(ctx, oldest); err != nil {
		log := m.Logger
		if log == nil {
			log = slog.Default()
		}
		log.Warn("a model of a single tensor could not be withdrawn", "model", oldest, "error", err)
	}
}
