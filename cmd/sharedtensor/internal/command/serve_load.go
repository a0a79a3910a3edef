package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/sharedtensor/sharedtensor/endpoint"
)

// loadPass is what became of one pass over all models.
type loadPass struct {
	published []string // names and versions: "llm version 2"
	failed    []string // names
	errs      []error  // of failed
}

// err is why models were not loaded; nil if all were.
func (p *loadPass) err() error { return errors.Join(p.errs...) }

// loader loads the models of an owner in a goroutine, all of them in each pass. It is used by one goroutine.
type loader struct {
	service *service
	ctx     context.Context
	cancel  context.CancelFunc
	passes  chan loadPass
	running bool
	again   bool // another pass follows the one that runs
	ended   int
}

func (s *service) newLoader(ctx context.Context) *loader {
	l := &loader{service: s, passes: make(chan loadPass, 1)}
	l.ctx, l.cancel = context.WithCancel(ctx)
	return l
}

// start begins a pass, after the one that runs if there is one.
func (l *loader) start() {
	if l.running {
		l.again = true
		return
	}
	l.running = true
	go func() { l.passes <- l.service.loadAll(l.ctx) }()
}

// end notes that a pass was received, begins the next if one was asked for, and reports whether it was the first.
func (l *loader) end() (first bool) {
	l.running, l.ended = false, l.ended+1
	if l.again {
		l.again = false
		l.start()
	}
	return l.ended == 1
}

// stop ends a pass that runs and waits for it. It reports whether there was one.
func (l *loader) stop() bool {
	l.cancel()
	if !l.running {
		return false
	}
	<-l.passes
	l.running = false
	return true
}

// loadAll loads one model after the other and publishes each as soon as it is there. One that fails does not stop the
// others; the end of ctx does. Clients see from the beginning what is going to be loaded.
func (s *service) loadAll(ctx context.Context) (pass loadPass) {
	loads := make([]*endpoint.Load, len(s.models))
	for i, m := range s.models {
		loads[i], _ = s.server.AnnounceLoad(m.name, m.source()) // the command line was checked for bad names
	}
	for i, m := range s.models {
		version, err := s.load(ctx, m, loads[i])
		switch {
		case ctx.Err() != nil:
			for _, load := range loads[i:] {
				load.Done()
			}
			return pass
		case err != nil:
			loads[i].Fail(err)
			pass.failed, pass.errs = append(pass.failed, m.name), append(pass.errs, err)
		default:
			loads[i].Done()
			pass.published = append(pass.published, fmt.Sprintf("%s version %d", m.name, version))
		}
	}
	return pass
}

// load loads a model and publishes it.
func (s *service) load(ctx context.Context, m modelArg, load *endpoint.Load) (version uint64, err error) {
	sd, err := loadModel(ctx, s.device, m, s.stderr, func(done, total int64) {
		load.Progress(done, total)
		s.notify.Progress(m.name, done, total)
	})
	if err != nil {
		return 0, err
	}
	version, err = s.server.PublishWith(ctx, m.name, sd, endpoint.PublishOptions{Source: m.source(), Digests: s.digests})
	return version, errors.Join(err, sd.Close()) // the server has the memory
}
