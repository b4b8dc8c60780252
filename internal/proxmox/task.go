// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// TaskClient reads and cancels tasks.
type TaskClient interface {
	// Task returns the state of a task that this client started.
	Task(ctx context.Context, task UPID) (TaskStatus, error)
	// TaskLog returns a task's log, which contains the cause of a failed start.
	TaskLog(ctx context.Context, task UPID) ([]string, error)
	// CancelTask cancels a running task. It does not report whether the task was
	// rolled back.
	CancelTask(ctx context.Context, task UPID) error
	// RecentTasks returns the tasks of a user on a Host that started at a time or later,
	// running and ended ones. The time is that of the Host's clock (see UPID.Started).
	// Without a user it returns the tasks of all users, as far as they are visible.
	RecentTasks(ctx context.Context, host, user string, since time.Time) ([]TaskStatus, error)
	// RunningTasks returns the running tasks of one type ("qmclone") on a Host. Without
	// Sys.Audit on the Host they are those of the same token only.
	RunningTasks(ctx context.Context, host, kind string) ([]TaskStatus, error)
}

type taskClient struct{ *caller }

// TaskStatus is the state of a task.
type TaskStatus struct {
	UPID    UPID
	Type    string
	ID      string // qmclone: the source's VMID
	User    string
	Started time.Time
	Running bool
	// Exit is the task's exit status: "OK", "WARNINGS: n" or the error.
	Exit string
}

// unexpectedStatus is the exit status of a task whose worker died without one.
const unexpectedStatus = "unexpected status"

const exitOK = "OK"

var warnings = regexp.MustCompile(`^WARNINGS: \d+$`)

// Succeeded reports whether the task ended without error. Warnings are in its log.
func (s TaskStatus) Succeeded() bool {
	return !s.Running && (s.Exit == exitOK || warnings.MatchString(s.Exit))
}

// HasWarnings reports whether the task succeeded with warnings, which are in its log.
func (s TaskStatus) HasWarnings() bool { return !s.Running && warnings.MatchString(s.Exit) }

// Ended reports whether the task has ended. It returns false for the zero value.
func (s TaskStatus) Ended() bool { return !s.Running && s.Exit != "" }

// Err returns the error of this package for the exit status, or nil if the task is
// running or succeeded.
func (s TaskStatus) Err() error {
	if s.Running || s.Succeeded() {
		return nil
	}
	return taskError(s)
}

func taskError(s TaskStatus) error {
	about := aboutOther
	switch kind := s.kind(); {
	case strings.HasPrefix(kind, "qm"), strings.HasPrefix(kind, "ha"), kind == "resize":
		about = aboutGuest
	case strings.HasPrefix(kind, "img"), kind == "download":
		about = aboutStorage
	}
	text := oneLine(s.Exit)
	if text == "" {
		text = unexpectedStatus
	}
	return fmt.Errorf("running task %s: %w", s.UPID, classifyText(text, about))
}

func (s TaskStatus) kind() string {
	if s.Type != "" {
		return s.Type
	}
	return s.UPID.Kind()
}

func (c taskClient) Task(ctx context.Context, task UPID) (TaskStatus, error) {
	if err := checkUPID(task); err != nil {
		return TaskStatus{}, err
	}
	var out taskRow
	if err := c.get(ctx, at("/nodes/{node}/tasks/{upid}/status", task.Host(), task), &out); err != nil {
		return TaskStatus{}, fmt.Errorf("reading task %s: %w", task, err)
	}
	status := out.status()
	status.UPID = task
	status.Running = out.Status == "running"
	status.Exit = out.ExitStatus
	return status, nil
}

// taskRow is a task in its own status or in a list. The exit status is in
// exitstatus in the former and in status in the latter.
type taskRow struct {
	UPID       UPID    `json:"upid"`
	Type       string  `json:"type"`
	ID         string  `json:"id"`
	User       string  `json:"user"`
	TokenID    string  `json:"tokenid"`
	StartTime  numeric `json:"starttime"`
	EndTime    numeric `json:"endtime"`
	Status     string  `json:"status"`
	ExitStatus string  `json:"exitstatus"`
}

func (r taskRow) status() TaskStatus {
	status := TaskStatus{UPID: r.UPID, Type: r.Type, ID: r.ID, User: r.User, Started: time.Unix(r.StartTime.whole(), 0)}
	if r.TokenID != "" {
		status.User += "!" + r.TokenID
	}
	return status
}

func (c taskClient) TaskLog(ctx context.Context, task UPID) ([]string, error) {
	if err := checkUPID(task); err != nil {
		return nil, err
	}
	var raw json.RawMessage
	e := at("/nodes/{node}/tasks/{upid}/log", task.Host(), task).with("limit", "0")
	if err := c.get(ctx, e, &raw); err != nil {
		return nil, fmt.Errorf("reading the log of task %s: %w", task, err)
	}
	type line struct {
		Text string `json:"t"`
	}
	var lines []line
	if err := json.Unmarshal(raw, &lines); err != nil {
		// The log of an unknown task is a single line instead of a list.
		var only line
		if json.Unmarshal(raw, &only) == nil {
			return nil, fmt.Errorf("reading the log of task %s: %w", task, &failure{kind: ErrNotFound, text: only.Text})
		}
		return nil, fmt.Errorf("reading the log of task %s: %w", task, &failure{kind: ErrFailed, text: oneLine(err.Error())})
	}
	texts := make([]string, 0, len(lines))
	for _, l := range lines {
		texts = append(texts, l.Text)
	}
	return texts, nil
}

func (c taskClient) CancelTask(ctx context.Context, task UPID) error {
	if err := checkUPID(task); err != nil {
		return err
	}
	if err := c.remove(ctx, at("/nodes/{node}/tasks/{upid}", task.Host(), task), nil); err != nil {
		return fmt.Errorf("canceling task %s: %w", task, err)
	}
	return nil
}

// maxTasks limits a list of tasks: Proxmox returns 50 by default.
const maxTasks = "1000"

func (c taskClient) RecentTasks(ctx context.Context, host, user string, since time.Time) ([]TaskStatus, error) {
	e := at("/nodes/{node}/tasks", host).with("source", "all").with("limit", maxTasks).
		with("since", strconv.FormatInt(since.Unix(), 10))
	if user != "" {
		e = e.with("userfilter", user)
	}
	tasks, err := c.tasks(ctx, e)
	if err != nil {
		return nil, fmt.Errorf("listing recent tasks on host %s: %w", host, err)
	}
	return tasks, nil
}

func (c taskClient) RunningTasks(ctx context.Context, host, kind string) ([]TaskStatus, error) {
	e := at("/nodes/{node}/tasks", host).with("source", "active").with("limit", maxTasks)
	if kind != "" {
		e = e.with("typefilter", kind)
	}
	tasks, err := c.tasks(ctx, e)
	if err != nil {
		return nil, fmt.Errorf("listing running %s tasks on host %s: %w", kind, host, err)
	}
	// The active list also contains tasks that ended recently.
	return slices.DeleteFunc(tasks, TaskStatus.Ended), nil
}

func (c taskClient) tasks(ctx context.Context, e endpoint) ([]TaskStatus, error) {
	var rows []taskRow
	if err := c.get(ctx, e, &rows); err != nil {
		return nil, err
	}
	tasks := make([]TaskStatus, 0, len(rows))
	for _, row := range rows {
		status := row.status()
		if status.Running = row.EndTime == 0 && (row.Status == "" || row.Status == "RUNNING"); !status.Running {
			status.Exit = cmp.Or(row.Status, unexpectedStatus)
		}
		tasks = append(tasks, status)
	}
	return tasks, nil
}

func checkUPID(task UPID) error {
	if task.Valid() {
		return nil
	}
	return &InvalidError{Parameters: map[string]string{"upid": fmt.Sprintf("found %q, want UPID:host:...", string(task))}}
}
