package demo

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/demonet"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

// ErrDisagree means that two processes computed different results, or that the memory is more than one copy.
var ErrDisagree = errors.New("the demo failed")

// prepareModel generates the model, or validates the given one.
func (d *director) prepareModel(ctx context.Context) (err error) {
	if d.path = d.opts.Path; d.path == "" {
		d.path = d.modelPath()
		if err := d.makeModel(ctx); err != nil {
			return err
		}
	} else if d.path, err = filepath.Abs(d.opts.Path); err != nil {
		return err
	} else {
		d.report.Model.Path = d.path
	}
	m, err := safetensors.Open(d.path)
	if err != nil {
		return err
	}
	d.report.Model.Tensors = len(m.Tensors)
	if err := m.Close(); err != nil {
		return err
	}
	d.step(ModelReady)
	return nil
}

// makeModel writes a small network to a file.
func (d *director) makeModel(ctx context.Context) (err error) {
	start := time.Now()
	config, err := demonet.ConfigFor(d.opts.Size)
	if err != nil {
		return err
	}
	dev, err := host.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	sd, err := demonet.Synthesize(ctx, dev, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sd.Close()) }()
	err = module.Save(ctx, d.path, sd, module.SaveOptions{Progress: d.progress("making")})
	d.report.Model.Made = time.Since(start)
	return err
}

// startOwner starts the owner's process. It starts before any file is written, because it removes the directory if the
// director is killed.
func (d *director) startOwner(ctx context.Context) (err error) {
	d.owner, err = d.start(ctx, "owner")
	return err
}

// serve requests the owner to load the model, and connects to it.
func (d *director) serve(ctx context.Context) error {
	got, err := d.owner.ask(ctx, request{Op: opServe, Path: d.path}, d.progress("loading"))
	if err != nil {
		return err
	}
	d.owner.report.Bytes, d.owner.report.Load = got.Bytes, got.Took
	d.report.Model.Bytes, d.report.Model.Mapped = got.Bytes, got.Mapped
	d.client, err = endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socketPath(d.dir), Label: "demo"})
	if err != nil {
		return err
	}
	d.step(OwnerServes)
	return nil
}

// attachClients starts the readers. They attach one at a time, so that they do not disturb each other's measurements.
func (d *director) attachClients(ctx context.Context) error {
	for i := range clients {
		p, err := d.start(ctx, fmt.Sprintf("client %d", i+1))
		if err != nil {
			return err
		}
		d.clients = append(d.clients, p)
		got, err := p.ask(ctx, request{Op: opAttach}, nil)
		if err != nil {
			return err
		}
		p.report.Bytes, p.report.Connect, p.report.Attach = got.Bytes, got.Connect, got.Took
		d.step(ClientAttached)
	}
	return nil
}

// agree computes on the owner and all readers concurrently, and compares the results.
func (d *director) agree(ctx context.Context) error {
	all := append([]*process{d.owner}, d.clients...)
	answers, err := each(ctx, all, request{Op: opCompute})
	if err != nil {
		return err
	}
	d.report.Result = answers[0].Result
	for i, a := range answers {
		all[i].report.Result, all[i].report.Compute = a.Result, a.Took
		if err := same(all[i], a.Result, d.report.Result); err != nil {
			return err
		}
	}
	d.step(AllAgree)
	d.report.Memory, err = d.measure(all, true)
	if err != nil {
		return err
	}
	d.step(MemoryMeasured)
	return nil
}

// same returns an error if a process computed a different result.
func same(p *process, got, want *Result) error {
	if got == nil || *got != *want {
		return fmt.Errorf("%w: %s, pid %d, computed %v, want %v", ErrDisagree, p.report.Role, p.report.PID, got, want)
	}
	return nil
}

// killClient kills a reader and waits until the owner has released its references.
func (d *director) killClient(ctx context.Context) error {
	p := d.clients[clients-1]
	held := func(holders map[uint64][]int) bool { return slices.Contains(holders[1], p.report.PID) }
	if _, err := d.waitForHolders(ctx, p.report.Role, held); err != nil {
		return err
	}
	start := time.Now()
	if err := p.signalKill(); err != nil {
		return err
	}
	holders, err := d.waitForHolders(ctx, "that "+p.report.Role+" is gone", func(h map[uint64][]int) bool { return !held(h) })
	if err != nil {
		return err
	}
	took := time.Since(start)
	if err := p.kill(); err != nil {
		return err
	}
	d.clients = d.clients[:clients-1]
	d.report.ClientKilled = &ClientKilled{PID: p.report.PID, Returned: took, Holders: len(holders[1])}
	if n := len(holders[1]); n != len(d.clients) {
		return fmt.Errorf("%w: the owner reports %d readers, want %d", ErrDisagree, n, len(d.clients))
	}
	d.step(ClientKilledStep)
	return nil
}
