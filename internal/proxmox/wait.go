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
	// maxBlind bounds the time between two looks, however long the task is
	// expected to take: a task that fails at once must not hide.
	maxBlind = 10 * time.Second
	// After the expected end the looks come in growing steps, which begin smaller
	// where the duration is known.
	firstStep = 100 * time.Millisecond
	smallStep = 30 * time.Millisecond
	maxStep   = 2 * time.Second
	// badLookPause follows a look that found nobody.
	badLookPause = time.Second
)

// WaitOptions steer WaitTask. The zero value works.
type WaitOptions struct {
	// Durations to look up and to teach; nil = only guesses.
	Durations *Durations
	// Key of what decides about the duration beside the task's type, such as
	// "region/host/storage".
	Key   string
	Clock clock.Clock
}

// WaitTask waits until a task has ended, well or not: see TaskStatus.Err. The
// error is about the waiting: the context ended, or the task cannot be read. A
// Host that does not answer ends nothing, since its tasks go on without us.
//
// The empty UPID of a call that was done at once has ended well.
//
// It looks when the task has probably ended instead of every second.
func WaitTask(ctx context.Context, client Client, task UPID, opts WaitOptions) (TaskStatus, error) {
	if task == "" {
		return TaskStatus{Exit: exitOK}, nil // Proxmox was done at once
	}
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	w := &taskWait{client: client, task: task, WaitOptions: opts, began: opts.Clock.Now()}
	status, err := w.run(ctx)
	if err != nil {
		return status, fmt.Errorf("waiting for task %s, %w", task, err)
	}
	if counts, ok := client.(interface {
		taskEnded(UPID, TaskStatus, time.Duration)
	}); ok {
		counts.taskEnded(task, status, opts.Clock.Since(w.began))
	}
	return status, nil
}

type taskWait struct {
	WaitOptions
	client Client
	task   UPID
	began  time.Time
	// lastRunning is when the last look was sent that saw the task running, since began.
	lastRunning time.Duration
}

func (w *taskWait) run(ctx context.Context) (TaskStatus, error) {
	expected := w.Durations.Expected(w.task.Kind(), w.Key)
	step, latest := max(firstStep, expected/10), expected
	if known, ok := w.Durations.known(w.task.Kind(), w.Key); ok {
		step, latest = max(smallStep, expected/fine), known.high
	}
	pause := min(expected, maxBlind)
	confirmed := false
	var badLook error
	for {
		if err := w.sleep(ctx, pause); err != nil {
			return TaskStatus{}, gaveUp(err, badLook)
		}
		// A look counts from when it was sent: that is what can be chosen the next time,
		// and its answer, which may take as long as a short task, tells of then.
		sent := w.Clock.Since(w.began)
		status, err := w.client.Task(ctx, w.task)
		elapsed := w.Clock.Since(w.began)
		switch {
		case err != nil && ctx.Err() != nil:
			return TaskStatus{}, gaveUp(ctx.Err(), err)
		case err != nil && passes(err):
			badLook, pause = err, badLookPause
			continue
		case err != nil:
			return TaskStatus{}, err
		case !status.Running && status.Exit == unexpectedStatus && !confirmed:
			// Between the worker's end and its last line in the log this shows
			// for a moment.
			confirmed, pause = true, firstStep
			continue
		case !status.Running:
			w.Durations.Observe(w.task.Kind(), w.Key, w.lastRunning, sent)
			return status, nil
		}
		w.lastRunning = sent
		if left := expected - elapsed; left > 0 {
			pause = min(left, maxBlind)
			continue
		}
		if left := latest - elapsed; left > 0 {
			pause = min(max(left, smallStep), maxBlind)
			continue
		}
		// A task that waits for its turn can take several times as long as expected:
		// never look more than a tenth too late.
		pause = min(step, max(firstStep, elapsed/10), max(maxStep, expected/10), maxBlind)
		step = step * 3 / 2
	}
}

// gaveUp is the context's end, with the last look where that failed.
func gaveUp(err, badLook error) error {
	if badLook == nil {
		return err
	}
	return fmt.Errorf("%w, after %w", err, badLook)
}

func (w *taskWait) sleep(ctx context.Context, pause time.Duration) error {
	timer := w.Clock.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// passes tells whether a look failed in a way that says nothing about the task.
func passes(err error) bool {
	for _, kind := range []error{
		ErrHostUnreachable, ErrUnreachable, ErrUnknownOutcome, ErrBusy, ErrLocked, ErrNoQuorum, ErrFailed,
		ErrUnauthorized, // a token that is being replaced
	} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}
