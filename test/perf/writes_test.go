// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// auditedNodes are few: the writes of each are the same.
const auditedNodes = 10

// TestWrites counts what the controller writes to Kubernetes for a Node.
func TestWrites(t *testing.T) {
	if !long() {
		t.Skip("SKIPPED: it needs a control plane of its own; run make bench BENCH=TestWrites")
	}
	if os.Getenv("KUBEPLANE") == "" || os.Getenv("CONTROLLER") == "" {
		t.Skip("SKIPPED: KUBEPLANE and CONTROLLER must name the binaries; make bench builds them and sets both")
	}
	s := startScaled(t, true)
	s.launch(auditedNodes)
	s.wait(func(context.Context) (bool, error) { return s.writes(0)["secrets"] >= 3*auditedNodes, nil })
	launched := s.writes(0)
	check := func(phase string, of map[string]int, names map[string]string) {
		for name, resource := range names {
			checkCount(t, "writes per "+phase+", "+name, float64(of[resource])/auditedNodes)
		}
	}
	check("launch", launched, map[string]string{"join token": "secrets", "events": "events", "NodeClaim": "nodeclaims"})

	read := s.auditSize()
	testenv.Must(t, s.plane.Client.DeleteAllOf(t.Context(), &karpv1.NodeClaim{}))
	s.wait(func(ctx context.Context) (bool, error) {
		claims := &karpv1.NodeClaimList{}
		err := s.plane.Client.List(ctx, claims)
		return len(claims.Items) == 0, err
	})
	check("delete", s.writes(read), map[string]string{"join token": "secrets", "NodeClaim": "nodeclaims"})
}

func (s *scaled) auditLog() string { return filepath.Join(s.plane.Dir, "logs", "audit.log") }

// auditSize returns the length of the audit log.
func (s *scaled) auditSize() int64 {
	info, err := os.Stat(s.auditLog())
	testenv.Must(s.t, err)
	return info.Size()
}

// auditEvent is a line of the audit log.
type auditEvent struct {
	Verb, UserAgent string
	ObjectRef       struct{ Resource, Subresource, Namespace string }
	RequestObject   struct {
		Reason   string
		Metadata struct{ Annotations map[string]string }
	}
}

// writes returns how often the controller changed objects of each resource since an offset of the audit
// log. Of NodeClaims, those count that core does not write: annotations of ours, other than those that core
// stores for Create. Of events, those of launches.
func (s *scaled) writes(since int64) map[string]int {
	s.t.Helper()
	content, err := os.ReadFile(s.auditLog())
	testenv.Must(s.t, err)
	out := map[string]int{}
	lines := bufio.NewScanner(bytes.NewReader(content[since:]))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event auditEvent
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil || !strings.HasPrefix(event.UserAgent, "karpenter/") {
			continue // a line that is being written, or of another client
		}
		switch event.Verb {
		case "create", "update", "patch", "delete":
		default:
			continue
		}
		ref, object := event.ObjectRef, event.RequestObject
		switch {
		case ref.Resource == "secrets" && ref.Namespace == "kube-system",
			ref.Resource == "events" && object.Reason == v1alpha1.EventVMLaunched,
			ref.Resource == "nodeclaims" && ref.Subresource == "" && hasOurs(object.Metadata.Annotations):
			out[ref.Resource]++
		}
	}
	return out
}

// hasOurs reports whether annotations are written by us, and not by core for Create.
func hasOurs(annotations map[string]string) bool {
	if _, created := annotations[v1alpha1.AnnotationLaunchedBy]; created {
		return false
	}
	for key := range annotations {
		if strings.HasPrefix(key, v1alpha1.Group+"/") {
			return true
		}
	}
	return false
}
