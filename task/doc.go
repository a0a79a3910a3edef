// Package task runs functions in the background and keeps their results until somebody fetches them, or for a while.
//
// A [Manager] runs a bounded number of tasks at once; the others wait in the order in which they came. A [Task] can be
// waited for, watched, cancelled while it waits or runs, and asked for its result any number of times. A function
// reports its progress with [Report], on the context it was given.
//
// Waiting occupies no worker. A caller waits on its own goroutine, and a task that waits for another task gives its
// place to others meanwhile, so tasks that wait for tasks cannot lock each other out. What else a task waits for it
// should wait for in [Blocking]. What several tasks wait for together is a [Work], which runs on the worker of one of
// them and reports for all.
//
// A result is held until the task is dropped: when it is too old, when there are too many, when [Task.Forget] or the
// end of the manager says so; or before the task, when there are too many bytes of results or [Task.Discard] says so.
// Then [Options.Release] gets the result, exactly once, and nothing of it is held any more. Each fetch returns a
// reference of its own where [Options.Share] makes one, so that what was fetched outlives the task.
//
// What surprises: a task does not end with the context with which it was submitted, only with [Task.Cancel], its
// timeout or the manager. A task for which Cancel returned true ends as [Cancelled] even if its function succeeds
// afterwards; its result is released then.
package task
