package jsonrpc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// maxTaskOwners limits the number of tasks whose submitters are recorded. The oldest record is evicted first.
const maxTaskOwners = 1 << 16

// taskOwners records the submitters of tasks in a file, because tasks outlive the gateway. Without a store, the records end with
// the gateway.
type taskOwners struct {
	mu    sync.Mutex
	byID  map[string]string // identity keys by task
	order []string          // tasks, oldest first
	path  string            // empty without a store
	file  *os.File          // open for appending
	lines int               // of the file
}

// taskOwner is a line of the file.
type taskOwner struct {
	Task string `json:"task"`
	By   string `json:"by"` // key of the identity
}

// openTaskOwners reads the records of the gateway's earlier runs. dir is empty without a store.
func openTaskOwners(dir string) (*taskOwners, error) {
	o := &taskOwners{byID: make(map[string]string)}
	if dir == "" {
		return o, nil
	}
	o.path = filepath.Join(dir, "tasks.jsonl")
	f, err := os.Open(o.path)
	if err == nil {
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			var one taskOwner
			if json.Unmarshal(lines.Bytes(), &one) == nil && one.Task != "" { // the last line may be incomplete
				o.addLocked(one)
			}
		}
		err = errors.Join(lines.Err(), f.Close())
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = o.rewriteLocked()
	}
	if err != nil {
		return nil, fmt.Errorf("--store: owners of tasks: %w", err)
	}
	return o, nil
}

func (o *taskOwners) addLocked(one taskOwner) {
	if _, known := o.byID[one.Task]; !known {
		o.order = append(o.order, one.Task)
	}
	o.byID[one.Task] = one.By
	if len(o.order) > maxTaskOwners {
		delete(o.byID, o.order[0])
		o.order = o.order[1:]
	}
}

// rewriteLocked replaces the file by one without evicted records.
func (o *taskOwners) rewriteLocked() error {
	f, err := os.OpenFile(o.path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(f)
	encoder := json.NewEncoder(out)
	for _, task := range o.order {
		if err = encoder.Encode(taskOwner{task, o.byID[task]}); err != nil {
			break
		}
	}
	if err = errors.Join(err, out.Flush()); err == nil {
		err = os.Rename(o.path+".new", o.path)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if o.file != nil {
		_ = o.file.Close() // best effort: it was replaced
	}
	o.file, o.lines = f, len(o.order)
	return nil
}

// record stores the sender of a request as the owner of a task.
func (o *taskOwners) record(ctx context.Context, task string) error {
	one := taskOwner{task, rights.Sender(ctx).Key()}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.addLocked(one)
	if o.path == "" {
		return nil
	}
	if o.lines >= 2*maxTaskOwners {
		if err := o.rewriteLocked(); err != nil {
			return fmt.Errorf("%w: the owner of task %q cannot be recorded", endpoint.ErrUnavailable, task)
		}
		return nil // it is among the rewritten ones
	}
	line, _ := json.Marshal(one) // cannot fail: strings only
	o.lines++
	if _, err := o.file.Write(append(line, '\n')); err != nil {
		o.lines = 2 * maxTaskOwners // the line may be incomplete: the next record rewrites the file
		return fmt.Errorf("%w: the owner of task %q cannot be recorded", endpoint.ErrUnavailable, task)
	}
	return nil
}

// check returns an error unless the sender of a request may see and cancel the task.
func (o *taskOwners) check(ctx context.Context, task string) error {
	o.mu.Lock()
	owner := o.byID[task]
	o.mu.Unlock()
	return rights.Sender(ctx).AllowTask(task, owner)
}

// Close closes the file.
func (o *taskOwners) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file == nil {
		return nil
	}
	return o.file.Close()
}
