// Package task runs functions in the background and keeps their results until they are fetched or expire.
//
// A [Manager] runs a limited number of tasks at once; the others wait in order of submission. A [Task] can be waited
// for, watched, cancelled, and its result fetched any number of times. A function reports its progress with [Report] on
// its context.
//
// Waiting occupies no worker. A caller waits on its own goroutine. A task that waits for another task releases its
// worker meanwhile, so tasks that wait for tasks cannot deadlock for lack of workers. Other waits of a task belong in
// [Blocking]. Work that several tasks wait for is a [Work]: it runs on the worker of one of them and reports progress
// for all.
//
// A result is held until its task is dropped: by age, by number or by the end of the manager. The limit on bytes and
// [Task.Discard] drop a result earlier. [Options.Release] then receives the result, exactly once.
//
// Surprises: a task does not end with the context of its submission, only with [Task.Cancel] or the manager. A task for which Cancel returned true ends as [Cancelled] even if its function succeeds afterwards; its
// result is then released.
package task
