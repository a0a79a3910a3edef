package stream

import (
	"cmp"
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
	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
	"github.com/sharedtensor/sharedtensor/module"
)

// Models serves the models of an owner as a Source and a Sink. Put publishes a set at the owner. Get maps the owner's
// tensors and sends them from the mapping. The parameter "count" of a Get limits it to the first tensors of the model.
// A Put without a name is published under the name "received-" and its id.
//
// Requests of kpu.torch.Service select a model with the parameters "model", "version" and "tensor". Without "tensor"
// they receive the model's tensors in order. ReceiveTensors publishes each tensor as a version of the model named by
// "model" in the metadata. Without it, the model is named "received-" and the tensor's id. Only the last Keep of the models
// of an identity that are named in this way stay published.
type Models struct {
	// Client returns the connection to the owner. Borrowed.
	Client func() (*endpoint.Client, error)
	// Bind returns a context that also ends when the owner leaves. If it is nil, requests wait until the owner returns.
	Bind func(ctx context.Context) (context.Context, context.CancelFunc)
	// Allow returns an error if the sender of a request has no right to a model. nil admits all senders.
	Allow func(ctx context.Context, right access.Right, model string) error
	// Published is called for each version that a sender has published. It may be nil.
	Published func(ctx context.Context, model string, version uint64, bytes int64)
	// Keep is the number of unnamed tensors and sets of each identity that stay published. The default is 64.
	Keep int
	// Logger receives messages for operators. The default is slog.Default().
	Logger *slog.Logger

	mu      sync.Mutex
	unnamed map[string][]string // models without a name by the identity that sent them, oldest first
}

// unnamedPrefix is the prefix of the names of models for tensors and sets without a name.
const unnamedPrefix = "received-"

// Set acquires a model. Closing the set ends the lease.
func (m *Models) Set(ctx context.Context, request Request) (*Set, error) {
	if request.Name == "" {
		return nil, fmt.Errorf("%w: name a model", ErrInvalid)
	}
	count, err := countOf(request.Parameters)
	if err != nil {
		return nil, err
	}
	if err := m.allow(ctx, access.Acquire, request.Name); err != nil {
		return nil, err
	}
	client, err := m.Client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := m.bind(ctx)
	defer cancel()
	handle, err := client.Acquire(ctx, request.Name, endpoint.AcquireOptions{Version: request.Version})
	if err != nil {
		return nil, err
	}
	names := request.Tensors
	if count > 0 && len(names) == 0 {
		all := handle.StateDict().Names()
		names = all[:min(count, len(all))]
	}
	sd, err := selected(handle.StateDict(), names)
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("model %q: %w", request.Name, err)
	}
	set := &Set{Name: request.Name, Version: handle.Version(), Tensors: sd, release: handle.Close}
	which := sha256.Sum256([]byte(strings.Join(sd.Names(), "\x00")))
	set.ID = fmt.Sprintf("%s/%s@%d/%s", handle.ServerID(), request.Name, handle.Version(), hex.EncodeToString(which[:8]))
	return set, nil
}

func (m *Models) allow(ctx context.Context, right access.Right, model string) error {
	if m.Allow == nil {
		return nil
	}
	return m.Allow(ctx, right, model)
}

func (m *Models) bind(ctx context.Context) (context.Context, context.CancelFunc) {
	if m.Bind == nil {
		return ctx, func() {}
	}
	return m.Bind(ctx)
}

// selected returns a state dict with the named tensors, or all tensors if there are no names. The caller owns it.
func selected(from *module.StateDict, names []string) (*module.StateDict, error) {
	if len(names) == 0 {
		return from.Alias(), nil
	}
	sd := module.NewStateDict()
	sd.Metadata = from.Metadata
	for _, name := range names {
		t, ok := from.Get(name)
		if !ok {
			sd.Close()
			return nil, fmt.Errorf("%w: tensor %q", ErrNotFound, name)
		}
		if err := sd.Set(name, t.Alias()); err != nil {
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
			return nil, fmt.Errorf("%w: version %q is not a number", ErrInvalid, text)
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
	return &Item{ID: name, Tensor: t.Alias(), Metadata: metadata}, nil
}

// Receive publishes a set.
func (m *Models) Receive(ctx context.Context, set *Set) (uint64, error) {
	defer set.Close()
	client, err := m.Client()
	if err != nil {
		return 0, err
	}
	ctx, cancel := m.bind(ctx)
	defer cancel()
	name, unnamed := set.Name, set.single || set.Name == ""
	if model := set.Tensors.Metadata["model"]; model != "" && set.single {
		name, unnamed = model, false
	} else if unnamed {
		name = unnamedPrefix + set.ID
	}
	if err := m.allow(ctx, access.Publish, name); err != nil {
		return 0, err
	}
	version, err := client.Publish(ctx, name, set.Tensors, endpoint.PublishOptions{Source: "stream"})
	if err == nil && m.Published != nil {
		m.Published(ctx, name, version, set.Tensors.Bytes())
	}
	if err == nil && unnamed {
		m.withdrawOldest(ctx, client, name)
	}
	return version, err
}

// withdrawOldest records a model without a name, and withdraws the oldest one of its sender if there are more than Keep.
func (m *Models) withdrawOldest(ctx context.Context, client *endpoint.Client, name string) {
	oldest := m.recordUnnamed(rights.Sender(ctx).Key(), name)
	if oldest == "" {
		return
	}
	if err := client.Withdraw(ctx, oldest); err != nil {
		log := m.Logger
		if log == nil {
			log = slog.Default()
		}
		log.Warn("cannot withdraw a model without a name", "model", oldest, "error", err)
	}
}

// recordUnnamed records a model without a name, and returns the oldest one of its sender if there are more than Keep.
func (m *Models) recordUnnamed(sender, name string) (oldest string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unnamed == nil {
		m.unnamed = make(map[string][]string)
	}
	for key, names := range m.unnamed { // a name belongs to the latest sender that published it
		if names = slices.DeleteFunc(names, func(n string) bool { return n == name }); len(names) == 0 {
			delete(m.unnamed, key)
			continue
		}
		m.unnamed[key] = names
	}
	own := append(m.unnamed[sender], name)
	if len(own) > cmp.Or(m.Keep, 64) {
		oldest, own = own[0], own[1:]
	}
	m.unnamed[sender] = own
	return oldest
}
