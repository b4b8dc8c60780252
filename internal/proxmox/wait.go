// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/utils/clock"
)

// firstPolls is when a task is polled first: after the shortest duration of such tasks on real Hosts.
// Proxmox does not report when a task ends.
var firstPolls = map[string]time.Duration{
	"qmclone":    250 * time.Millisecond,
	"qmstart":    time.Second,
	"qmdestroy":  300 * time.Millisecond,
	"resize":     150 * time.Millisecond,
	"imgcopy":    100 * time.Millisecond,
	"imgdel":     100 * time.Millisecond,
	"download":   5 * time.Second, // delays no node
	taskStop:     700 * time.Millisecond,
	taskShutdown: 1700 * time.Millisecond,
}

const (
	// defaultFirstPoll applies to all other types.
	defaultFirstPoll = 300 * time.Millisecond
	// After the first poll, the interval between requests is a fifth of the time that has passed, within these
	// bounds: the end of a task is noticed a fifth and one request too late at most.
	minInterval, maxInterval = 50 * time.Millisecond, 5 * time.Second
	// failedPollDelay follows a poll that failed.
	failedPollDelay = time.Second
	// unreachableTimeout is how long the Host of a task may be unreachable.
	unreachableTimeout = 30 * time.Second
	// unexpectedDelay follows a poll that returned unexpectedStatus.
	unexpectedDelay = 100 * time.Millisecond
)

// Stops take 0.6 s or 1.7 s: Proxmox checks every second whether the VM has stopped. It
// does so too while a guest shuts down, which takes as long as the guest needs.
const (
	taskStop     = "qmstop"
	taskShutdown = "qmshutdown"
	stopInterval = time.Second
)

// WaitOptions are the options of WaitTask. The zero value is valid.
type WaitOptions struct {
	Clock clock.Clock
	// Polls shares polls with other waits; nil = the wait polls alone.
	Polls *TaskPolls
}

// WaitTask waits until a task has ended. See TaskStatus.Err for its result. WaitTask
// returns an error if the context ends, the task cannot be read, or its Host is unreachable
// for some time; the task may continue. If the context ends, the status is that of the last
// poll, and empty if that failed.
//
// An empty UPID is that of a call that needed no task and has succeeded.
func WaitTask(ctx context.Context, client TaskClient, task UPID, opts WaitOptions) (TaskStatus, error) {
	if task == "" {
		return TaskStatus{Exit: exitOK}, nil
	}
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	w := &taskWait{client: client, task: task, WaitOptions: opts, began: opts.Clock.Now(), ended: make(chan TaskStatus, 1)}
	leave := opts.Polls.join(w)
	status, err := w.run(ctx)
	leave()
	if err != nil {
		return status, fmt.Errorf("waiting for task %s: %w", task, err)
	}
	if recorder, ok := client.(interface {
		taskEnded(UPID, TaskStatus, time.Duration)
	}); ok {
		recorder.taskEnded(task, status, opts.Clock.Since(w.began))
	}
	return status, nil
}

func (c taskClient) taskEnded(task UPID, status TaskStatus, took time.Duration) {
	c.metrics.taskEnded(task, status, took)
}

type taskWait struct {
	WaitOptions
	client TaskClient
	task   UPID
	began  time.Time
	// ended receives the status if a poll of another wait found the task ended.
	ended chan TaskStatus
	// unreachableSince is when the Host was first unreachable; zero if it was reachable since.
	unreachableSince time.Time
	// lists belongs to Polls: for how many intervals in a row the wait relied on lists.
	lists int
}

func (w *taskWait) run(ctx context.Context) (TaskStatus, error) {
	delay, ok := firstPolls[w.task.Kind()]
	if !ok {
		delay = defaultFirstPoll
	}
	confirmed := false
	var last TaskStatus
	var pollErr error
	for {
		status, ended, err := w.sleep(ctx, delay)
		if err != nil {
			return last, contextError(err, pollErr)
		}
		sent := w.Clock.Now()
		if !ended {
			if status, delay, err = w.poll(ctx); delay > 0 {
				continue
			}
		}
		switch {
		case err != nil && ctx.Err() != nil:
			if w.Clock.Since(sent) >= hangTime { // otherwise the context ended the poll
				last, pollErr = TaskStatus{}, err
			}
			return last, contextError(ctx.Err(), pollErr)
		case w.canRetry(err, sent):
			last, pollErr, delay = TaskStatus{}, err, failedPollDelay
			continue
		case err != nil:
			return TaskStatus{}, err
		case !status.Running && status.Exit == unexpectedStatus && !confirmed:
			// Proxmox reports this status for a moment after the worker's end, before the
			// last line of its log is written.
			confirmed, delay = true, unexpectedDelay
			continue
		case !status.Running:
			return status, nil
		}
		last, pollErr, delay = status, nil, w.interval(sent)-w.Clock.Since(sent)
	}
}

// canRetry reports whether a poll failed for another reason than the task itself, and its Host has
// not been unreachable for too long. at is when the poll began.
func (w *taskWait) canRetry(err error, at time.Time) bool {
	if !errors.Is(err, ErrHostUnreachable) {
		w.unreachableSince = time.Time{}
		return IsTransient(err) || errors.Is(err, ErrFailed)
	}
	if w.unreachableSince.IsZero() {
		w.unreachableSince = at
	}
	return w.Clock.Since(w.unreachableSince) < unreachableTimeout
}

// interval returns the time between a poll that found the task running, and the next.
func (w *taskWait) interval(polled time.Time) time.Duration {
	if kind := w.task.Kind(); kind == taskStop || kind == taskShutdown {
		return stopInterval
	}
	return min(max(polled.Sub(w.began)/5, minInterval), maxInterval)
}

// poll returns the task's status. If another wait has just requested the Host's task
// list, it returns how long to wait instead.
func (w *taskWait) poll(ctx context.Context) (status TaskStatus, later time.Duration, err error) {
	tasks, later := w.Polls.next(w)
	if later > 0 {
		return TaskStatus{}, later, nil
	}
	listed := false
	if len(tasks) > 0 {
		status, listed, err = w.Polls.list(ctx, w, tasks)
	}
	if err == nil && !listed {
		status, err = w.client.Task(ctx, w.task)
	}
	return status, 0, err
}

// contextError returns the context's error together with the error of the last poll.
func contextError(err, pollErr error) error {
	if pollErr == nil {
		return err
	}
	return fmt.Errorf("%w, last poll: %w", err, pollErr)
}

// sleep waits for the next poll, or until a poll of another wait found the task ended.
func (w *taskWait) sleep(ctx context.Context, delay time.Duration) (status TaskStatus, ended bool, err error) {
	timer := w.Clock.NewTimer(delay)
	defer timer.Stop()
	select {
	case status := <-w.ended:
		return status, true, nil
	case <-timer.C():
		return TaskStatus{}, false, nil
	case <-ctx.Done():
		return TaskStatus{}, false, ctx.Err()
	}
}
