package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// caller is a connection for calling endpoints, with the devices for tensors in arguments and results.
type caller struct {
	owner   *cli.OwnerFlags
	client  *endpoint.Client
	devices []driver.Device // host memory is first
}

// openGPU opens a GPU by its UUID.
var openGPU = cli.OpenCUDAUUID

// withCaller connects with the devices of the owner, calls use, and closes the connection. A GPU is opened when a tensor
// on it arrives.
func withCaller(ctx context.Context, o *cli.OwnerFlags, use func(ctx context.Context, on *caller) error) (err error) {
	devices, err := ownersDevices(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cli.CloseDevices(devices)) }()
	client, err := o.Dial(ctx, devices...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	return use(ctx, &caller{o, client, devices})
}

// ownersDevices returns host memory and the GPUs whose memory the owner shares. A call that needs a GPU that cannot be
// opened fails with an error about it.
func ownersDevices(ctx context.Context, o *cli.OwnerFlags) ([]driver.Device, error) {
	var info endpoint.ServerInfo
	err := o.WithOwner(ctx, func(ctx context.Context, client *endpoint.Client) (err error) {
		ctx, cancel := o.Bounded(ctx)
		defer cancel()
		info, err = client.ServerInfo(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	dev, err := cli.OpenHost()
	if err != nil {
		return nil, err
	}
	devices := []driver.Device{dev}
	seen := map[driver.UUID]bool{{}: true, dev.Info().UUID: true}
	for _, d := range info.Devices {
		uuid, err := driver.ParseUUID(d.UUID)
		if err != nil || d.Type != driver.CUDA.String() || seen[uuid] {
			continue
		}
		seen[uuid] = true
		devices = append(devices, cli.LazyGPU(driver.Info{Type: driver.CUDA, Index: d.Index, UUID: uuid, Name: d.Name}, openGPU))
	}
	return devices, nil
}

// closers are closed together.
type closers []interface{ Close() error }

func (c closers) Close() error {
	var errs []error
	for _, one := range c {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

// argument builds the argument of a call. The caller closes the returned closers after the call, also on an error.
func (on *caller) argument(ctx context.Context, args *callArgs) (any, closers, error) {
	if args.whole != "" {
		v, err := parseJSON(args.whole)
		return v, nil, err
	}
	if args.empty() {
		return nil, nil, nil
	}
	in := map[string]any{}
	for key, v := range args.fields {
		in[key] = v
	}
	var held closers
	for key, ref := range args.refs {
		v, with, err := on.tensors(ctx, ref)
		held = append(held, with...)
		if err != nil {
			return nil, held, fmt.Errorf("%s=@%s: %w", key, ref, err)
		}
		in[key] = v
	}
	return in, held, nil
}

// tensors resolves a reference to a *tensor.Tensor or a *module.StateDict.
func (on *caller) tensors(ctx context.Context, ref string) (any, closers, error) {
	path, name, isFile, err := splitReference(ref)
	if err != nil {
		return nil, nil, err
	}
	if isFile {
		return on.fromFile(ctx, path, name)
	}
	h, err := acquire(ctx, on.owner, on.client, path, endpoint.AcquireOptions{})
	if errors.Is(err, endpoint.ErrNotFound) {
		err = fmt.Errorf("%q is neither a file nor a published name: %w", path, err)
	}
	if err != nil {
		return nil, nil, err
	}
	if name == "" {
		return h.StateDict(), closers{h}, nil
	}
	t, found := h.StateDict().Get(name)
	if !found {
		return nil, closers{h}, fmt.Errorf("%s has no tensor %q: %w", path, name, endpoint.ErrNotFound)
	}
	return t, closers{h}, nil
}

// splitReference splits SOURCE:NAME. Names of files, models and tensors may contain colons. It prefers the longest
// prefix that is a file. If there is none, the part before the first colon is a model.
func splitReference(ref string) (source, name string, isFile bool, err error) {
	for end := len(ref); end > 0; end = strings.LastIndexByte(ref[:end], ':') {
		_, err := os.Stat(ref[:end])
		if err == nil {
			return ref[:end], strings.TrimPrefix(ref[end:], ":"), true, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", "", false, err
		}
	}
	source, name, _ = strings.Cut(ref, ":")
	if strings.HasSuffix(source, ".safetensors") {
		return "", "", false, fmt.Errorf("%s: %w", source, fs.ErrNotExist)
	}
	return source, name, false, nil
}

// fromFile reads the named tensor into host memory, or all tensors if name is empty.
func (on *caller) fromFile(ctx context.Context, path, name string) (_ any, _ closers, err error) {
	if name == "" {
		sd, err := module.Load(ctx, on.devices[0], path, module.LoadOptions{})
		if err != nil {
			return nil, nil, err
		}
		return sd, closers{sd}, nil
	}
	model, err := module.OpenModel(path)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	entry, found := model.Lookup(name)
	if !found {
		return nil, nil, fmt.Errorf("%s has no tensor %q: %w", path, name, endpoint.ErrNotFound)
	}
	t, err := tensor.Zeros(on.devices[0], entry.DType, entry.Shape)
	if err != nil {
		return nil, nil, err
	}
	return t, closers{t}, errors.Join(t.FillFrom(model.Reader(entry)), model.Unchanged())
}
