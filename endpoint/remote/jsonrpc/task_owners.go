package jsonrpc

import (
	"context"
	"fmt"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// maxTaskOwners limits the number of tasks whose submitters are recorded. The oldest record is evicted first.
const maxTaskOwners = 1 << 16

// taskOwners records the submitters of this gateway's tasks.
type taskOwners struct {
	mu    sync.Mutex
	byID  map[string]string // identity keys by task
	order []string          // tasks, oldest first
}

func (o *taskOwners) record(ctx context.Context, task string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byID == nil {
		o.byID = make(map[string]string)
	}
	if _, known := o.byID[task]; !known {
		o.order = append(o.order, task)
	}
	o.byID[task] = rights.Sender(ctx).Key()
	if len(o.order) > maxTaskOwners {
		delete(o.byID, o.order[0])
		o.order = o.order[1:]
	}
}

// check returns an error unless the sender of a request may cancel the task. Senders may cancel tasks that they
// submitted. Senders that may write may also cancel tasks that were not submitted through this gateway. Without
// identities, all clients count as one.
func (o *taskOwners) check(ctx context.Context, task string) error {
	o.mu.Lock()
	owner, known := o.byID[task]
	o.mu.Unlock()
	id := rights.Sender(ctx)
	switch {
	case known && owner == id.Key():
		return nil
	case known:
		return fmt.Errorf("%w: task %q was submitted by another client", models.ErrRefused, task)
	case id.ReadOnly:
		return fmt.Errorf("%w: task %q was not submitted by this client, whose token is read-only", models.ErrRefused, task)
	}
	return nil
}
