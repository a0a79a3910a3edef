// Package rl moves parameters and data between one trainer and many workers in reinforcement learning: parameters to
// the workers, data to the trainer.
//
//	trainer, err := rl.NewTrainer(ctx, rl.Options{Run: "cartpole", Conn: conn, Device: dev, Owner: owner})
//	version, err := trainer.Publish(ctx, parameters)
//	samples, err := trainer.Pull(ctx, 32)
//
//	worker, err := rl.NewWorker(ctx, rl.Options{Run: "cartpole", Conn: conn, Device: dev, Owner: owner})
//	p, err := worker.Await(ctx, -1) // the first parameters
//	err = worker.Add(ctx, bins.Value{Body: trajectory})
//
// Versions count from 0. A worker with the same owner as the trainer maps the parameters in place, regardless of their
// size. Other workers fetch the bytes and verify them. Data carries the version of the parameters that the worker last
// fetched, and the trainer receives only data within its staleness window. Trainer, workers and servers may end and
// restart at any time: parameters and data stay. A restarted trainer continues with the next version. If two trainers
// use the same run, the superseded one fails when it publishes.
//
// The bin "<run>.parameters" of the namespace "rl" points to the parameters. Their bytes are in objects that are never
// overwritten. Data is in a queue that delivers at least once.
package rl
