// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// unexpectedStatus is the last word of a task whose worker died without one.
const unexpectedStatus = "unexpected status"

const exitOK = "OK"

var warnings = regexp.MustCompile(`^WARNINGS: \d+$`)

// Succeeded tells whether the task ended well. Warnings are in its log.
func (s TaskStatus) Succeeded() bool {
	return !s.Running && (s.Exit == exitOK || warnings.MatchString(s.Exit))
}

// taskError makes an error of a task's last word.
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
	return fmt.Errorf("running task %s, %w", s.UPID, classifyText(text, about))
}

func (s TaskStatus) kind() string {
	if s.Type != "" {
		return s.Type
	}
	return s.UPID.Kind()
}

// Task reads the state of a task that this client started.
func (c *client) Task(ctx context.Context, task UPID) (TaskStatus, error) {
	if err := checkUPID(task); err != nil {
		return TaskStatus{}, err
	}
	var out taskRow
	if err := c.get(ctx, at("/nodes/{node}/tasks/{upid}/status", task.Host(), task), &out); err != nil {
		return TaskStatus{}, fmt.Errorf("reading task %s, %w", task, err)
	}
	status := out.status()
	status.UPID = task
	status.Running = out.Status == "running"
	status.Exit = out.ExitStatus
	return status, nil
}

// taskRow is a task as its own status and as a list shows it: the one has the
// last word in exitstatus, the other in status.
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

// TaskLog reads a task's log.
func (c *client) TaskLog(ctx context.Context, task UPID) ([]string, error) {
	if err := checkUPID(task); err != nil {
		return nil, err
	}
	var raw json.RawMessage
	e := at("/nodes/{node}/tasks/{upid}/log", task.Host(), task).with("limit", "0")
	if err := c.get(ctx, e, &raw); err != nil {
		return nil, fmt.Errorf("reading the log of task %s, %w", task, err)
	}
	type line struct {
		Text string `json:"t"`
	}
	var lines []line
	if err := json.Unmarshal(raw, &lines); err != nil {
		// An unknown task's log is one line that is not in a list.
		var only line
		if json.Unmarshal(raw, &only) == nil {
			return nil, fmt.Errorf("reading the log of task %s, %w", task, &failure{kind: ErrNotFound, text: only.Text})
		}
		return nil, fmt.Errorf("reading the log of task %s, %w", task, &failure{kind: ErrFailed, text: oneLine(err.Error())})
	}
	texts := make([]string, 0, len(lines))
	for _, l := range lines {
		texts = append(texts, l.Text)
	}
	return texts, nil
}

// CancelTask ends a running task; whether it rolled back must be looked at.
func (c *client) CancelTask(ctx context.Context, task UPID) error {
	if err := checkUPID(task); err != nil {
		return err
	}
	if err := c.delete(ctx, at("/nodes/{node}/tasks/{upid}", task.Host(), task), nil); err != nil {
		return fmt.Errorf("cancelling task %s, %w", task, err)
	}
	return nil
}

// RunningTasks lists the tasks under way on a Host of one type. Without
// Sys.Audit on the Host it shows only those of the same token.
func (c *client) RunningTasks(ctx context.Context, host, kind string) ([]TaskStatus, error) {
	e := at("/nodes/{node}/tasks", host).with("source", "active").with("limit", "1000")
	if kind != "" {
		e = e.with("typefilter", kind)
	}
	var rows []taskRow
	if err := c.get(ctx, e, &rows); err != nil {
		return nil, fmt.Errorf("listing running %s tasks on host %s, %w", kind, host, err)
	}
	var running []TaskStatus
	for _, row := range rows {
		// The active list also holds tasks that ended a moment ago.
		if row.EndTime != 0 || row.Status != "" && row.Status != "RUNNING" {
			continue
		}
		status := row.status()
		status.Running = true
		running = append(running, status)
	}
	return running, nil
}

func checkUPID(task UPID) error {
	if task.Valid() {
		return nil
	}
	return &InvalidError{Parameters: map[string]string{"upid": fmt.Sprintf("found %q, want UPID:host:...", string(task))}}
}
