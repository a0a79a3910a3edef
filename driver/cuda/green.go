package cuda

import (
	"errors"

	"github.com/sharedtensor/sharedtensor/driver/cuda/cu"
)

// Multiprocessors is a set of streaming multiprocessors of a device, for contexts that use no others
// ([Multiprocessors.NewContext]). It needs CUDA 12.4.
type Multiprocessors struct {
	dev *Device
	set cu.DevResource
}

// Multiprocessors returns those that the device's context uses: all, unless it is a context of
// [Multiprocessors.NewContext].
func (d *Device) Multiprocessors() (Multiprocessors, error) {
	m := Multiprocessors{dev: d}
	err := d.invoke("cuCtxGetDevResource", func(c cu.Context) cu.Result {
		return c.CtxGetDevResource(c, &m.set, cu.DEV_RESOURCE_TYPE_SM)
	})
	return m, d.opError("multiprocessors", err)
}

// Count returns the number of multiprocessors in the set.
func (m Multiprocessors) Count() int {
	if m.dev == nil {
		return 0
	}
	return int(m.set.Sm().SmCount)
}

// Split returns disjoint groups of at least minimum multiprocessors each, and the rest. There may be fewer groups than
// requested, at least one. The device rounds the size of groups up.
func (m Multiprocessors) Split(groups, minimum int) (parts []Multiprocessors, rest Multiprocessors, err error) {
	if m.dev == nil || groups < 1 || groups > 1024 || minimum < 0 || minimum > 1<<20 {
		return nil, rest, invalid("%d groups of %d multiprocessors", groups, minimum)
	}
	sets := make([]cu.DevResource, groups)
	n := uint32(groups)
	rest.dev = m.dev
	err = m.dev.invoke("cuDevSmResourceSplitByCount", func(c cu.Context) cu.Result {
		return c.DevSmResourceSplitByCount(&sets[0], &n, &m.set, &rest.set, 0, uint32(minimum))
	})
	if err != nil {
		return nil, Multiprocessors{}, m.dev.opError("split multiprocessors", err)
	}
	for _, s := range sets[:n] {
		parts = append(parts, Multiprocessors{m.dev, s})
	}
	return parts, rest, nil
}

// NewContext returns a device whose work runs on the multiprocessors of the set only (a green context). The caller owns
// it. It has its own streams, modules and functions; memory can be used in all contexts of the device. Its streams must
// not be blocking. The context is destroyed when the device and the last object made from it are closed.
func (m Multiprocessors) NewContext(opts ...Option) (*Device, error) {
	if m.dev == nil {
		return nil, invalid("no multiprocessors")
	}
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	d, err := m.newContext(o)
	if err != nil {
		return nil, m.dev.opError("new context", err)
	}
	return d, nil
}

func (m Multiprocessors) newContext(o options) (*Device, error) {
	if err := m.dev.hold(); err != nil { // until the new context is destroyed
		return nil, err
	}
	parent := m.dev.p
	p := &primary{name: parent.name}
	p.refs.Store(1)
	p.release = func() error {
		var err error
		if p.green != 0 {
			if err = freed("cuGreenCtxDestroy", cu.GreenCtxDestroy(p.green)); mustRetry(err) {
				return err
			}
			p.green = 0
		}
		return joinErrors([]error{err, parent.put()})
	}
	err := m.dev.Call(func(c cu.Context) error {
		desc := new(cu.DevResourceDesc)
		if err := check("cuDevResourceGenerateDesc", c.DevResourceGenerateDesc(desc, &m.set, 1)); err != nil {
			return err
		}
		if err := check("cuGreenCtxCreate", c.GreenCtxCreate(&p.green, *desc, m.dev.handle, cu.GREEN_CTX_DEFAULT_STREAM)); err != nil {
			return err
		}
		return check("cuCtxFromGreenCtx", cu.CtxFromGreenCtx(&p.ctx, p.green))
	})
	if err != nil {
		return nil, errors.Join(err, p.drop())
	}
	d, err := deviceIn(p, o)
	if err != nil {
		return nil, errors.Join(err, p.drop())
	}
	return d, nil
}

// makeStream creates a stream in the context.
func (p *primary) makeStream(h *cu.Stream, flags cu.Stream_flags, priority int32) error {
	if p.green == 0 {
		return check("cuStreamCreateWithPriority", p.ctx.StreamCreateWithPriority(h, flags, priority))
	}
	if flags != cu.STREAM_NON_BLOCKING {
		return invalid("a blocking stream in a context of some multiprocessors")
	}
	return check("cuGreenCtxStreamCreate", p.ctx.GreenCtxStreamCreate(h, p.green, flags, priority))
}
