package task_test

import (
	"context"
	"fmt"
	"log"

	"github.com/sharedtensor/sharedtensor/task"
)

// A task runs in the background, reports its progress, and keeps its result until it is fetched.
func Example() {
	ctx := context.Background()
	tasks := task.New(task.Options[int]{})
	defer tasks.Shutdown(ctx)
	sum, err := tasks.Submit(ctx, task.Spec{Name: "sum"}, func(ctx context.Context) (int, error) {
		total := 0
		for i := range 5 {
			total += i
			task.Report(ctx, int64(i+1), 5, "adding")
		}
		return total, nil
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := sum.Wait(ctx); err != nil {
		log.Fatal(err)
	}
	result, err := sum.Result()
	if err != nil {
		log.Fatal(err)
	}
	status := sum.Status()
	fmt.Println(status.State, status.Progress.Done, "of", status.Progress.Total, result)
	// Output: completed 5 of 5 10
}
