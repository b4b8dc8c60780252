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

const (
	// maxInterval limits the time between two polls, however long the task is
	// expected to take, so a task that fails early is noticed.
	maxInterval = 10 * time.Second
	// After the expected end the intervals grow. They start smaller if the duration
	// is known.
	firstStep = 100 * time.Millisecond
	smallStep = 30 * time.Millisecond
	maxStep   = 2 * time.Second
	// failedPollDelay follows a poll that failed.
	failedPollDelay = time.Second
)

// WaitOptions are the options of WaitTask. The zero value is valid.
type WaitOptions struct {
	// Durations provides the expected duration and records the observed one; nil =
	// defaults only.
	Durations *Durations
	// Key identifies tasks of similar duration, in addition to the task's type, such
	// as "region/host/storage".
	Key   string
	Clock clock.Clock
}

// WaitTask waits until a task has ended. See TaskStatus.Err for its result. WaitTask
// returns an error if the context ends or the task cannot be read. It keeps waiting
// while the Host is unreachable, since the Host's tasks continue.
//
// An empty UPID is that of a call that needed no task and has succeeded.
//
// WaitTask polls when the task has probably ended instead of every second.
func WaitTask(ctx context.Context, client TaskClient, task UPID, opts WaitOptions) (TaskStatus, error) {
	if task == "" {
		return TaskStatus{Exit: exitOK}, nil
	}
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	w := &taskWait{client: client, task: task, WaitOptions: opts, began: opts.Clock.Now()}
	status, err := w.run(ctx)
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
	// lastRunning is when the last poll was sent that found the task running, since began.
	lastRunning time.Duration
}

func (w *taskWait) run(ctx context.Context) (TaskStatus, error) {
	expected := w.Durations.Expected(w.task.Kind(), w.Key)
	step, latest := max(firstStep, expected/10), expected
	if known, ok := w.Durations.known(w.task.Kind(), w.Key); ok {
		step, latest = max(smallStep, expected/precision), known.high
	}
	delay := min(expected, maxInterval)
	confirmed := false
	var pollErr error
	for {
		if err := w.sleep(ctx, delay); err != nil {
			return TaskStatus{}, contextError(err, pollErr)
		}
		// The time of a poll is when it was sent: only that can be chosen for the next
		// task, and the response, which can take as long as a short task, shows the
		// state at that time.
		sent := w.Clock.Since(w.began)
		status, err := w.client.Task(ctx, w.task)
		elapsed := w.Clock.Since(w.began)
		switch {
		case err != nil && ctx.Err() != nil:
			return TaskStatus{}, contextError(ctx.Err(), err)
		case IsTransient(err) || errors.Is(err, ErrFailed): // not about the task itself
			pollErr, delay = err, failedPollDelay
			continue
		case err != nil:
			return TaskStatus{}, err
		case !status.Running && status.Exit == unexpectedStatus && !confirmed:
			// Proxmox reports this status for a moment after the worker's end, before the
			// last line of its log is written.
			confirmed, delay = true, firstStep
			continue
		case !status.Running:
			w.Durations.Observe(w.task.Kind(), w.Key, w.lastRunning, sent)
			return status, nil
		}
		w.lastRunning = sent
		if left := expected - elapsed; left > 0 {
			delay = min(left, maxInterval)
			continue
		}
		if left := latest - elapsed; left > 0 {
			delay = min(max(left, smallStep), maxInterval)
			continue
		}
		// A task that waits for a lock can take several times as long as expected:
		// never poll more than a tenth too late.
		delay = min(step, max(firstStep, elapsed/10), max(maxStep, expected/10), maxInterval)
		step = step * 3 / 2
	}
}

// contextError returns the context's error together with the error of the last poll.
func contextError(err, pollErr error) error {
	if pollErr == nil {
		return err
	}
	return fmt.Errorf("%w, last poll: %w", err, pollErr)
}

func (w *taskWait) sleep(ctx context.Context, delay time.Duration) error {
	timer := w.Clock.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
