// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// quorumRefusals are messages of calls that had no effect for lack of quorum. A config
// write fails with another message, perhaps after it created a volume.
var quorumRefusals = []string{"cluster not ready - no quorum?", "error: no quorum!"}

// isRefusedForQuorum reports whether the Host refused the request because it has no
// quorum.
func (r response) isRefusedForQuorum() bool {
	if r.status < 500 {
		return false
	}
	text, _ := r.message()
	return slices.ContainsFunc(quorumRefusals, func(refusal string) bool { return strings.Contains(text, refusal) })
}

// noQuorumError is a Host that is not part of a majority. What it lists is outdated:
// other Hosts seem to be offline, and their guests are missing.
type noQuorumError struct{ found string }

func (e *noQuorumError) Error() string        { return e.found }
func (e *noQuorumError) Is(target error) bool { return target == ErrNoQuorum }

// quorum verifies that lists of Hosts come from a Host with quorum.
type quorum struct {
	mu sync.Mutex
	// offline are the Hosts that were not online in the last list with quorum.
	offline []string
}

// verify returns a noQuorumError if the Host that sent a list has no quorum. It reads
// that only if a Host is no longer online: a Host that lost quorum lost other Hosts.
func (q *quorum) verify(hosts []HostRow, get func(endpoint) (response, error)) error {
	var offline []string
	for _, host := range hosts {
		if !host.Online {
			offline = append(offline, host.Name)
		}
	}
	q.mu.Lock()
	known := q.offline
	q.mu.Unlock()
	if slices.ContainsFunc(offline, func(host string) bool { return !slices.Contains(known, host) }) {
		if err := readQuorum(get, len(offline) < len(hosts)); err != nil {
			return err
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.offline = offline
	return nil
}

// observed returns a function that also records the metrics of calls.
func (c *caller) observed(get func(endpoint) (response, error)) func(endpoint) (response, error) {
	return func(e endpoint) (response, error) {
		begin := time.Now()
		resp, err := get(e)
		c.metrics.observe(newRequest(http.MethodGet, e, nil), resp, err, time.Since(begin))
		return resp, err
	}
}

// readQuorum returns a noQuorumError if the Host has no quorum. A user who may not read
// it sees only that no Host is online.
func readQuorum(get func(endpoint) (response, error), anyOnline bool) error {
	resp, err := get(at("/cluster/status"))
	if err != nil {
		return err
	}
	data, err := resp.data()
	if _, forbidden := errors.AsType[*ForbiddenError](err); forbidden {
		if anyOnline {
			return nil
		}
		return &noQuorumError{"the host lists no online host, not even itself"}
	}
	if err != nil {
		return fmt.Errorf("reading whether the host has quorum: %w", err)
	}
	var rows []struct {
		Type    string
		Name    string
		Quorate numeric
		Local   numeric
	}
	if err := json.Unmarshal(data, &rows); err != nil {
		return fmt.Errorf("reading whether the host has quorum: %w", err)
	}
	quorate, local := true, ""
	for _, row := range rows {
		switch {
		case row.Type == "cluster":
			quorate = row.Quorate.isSet()
		case row.Local.isSet():
			local = row.Name
		}
	}
	if quorate {
		return nil
	}
	return &noQuorumError{fmt.Sprintf("host %s reports that it has no quorum", local)}
}
