// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// oldRecipeFailures is what the checks must report for a Node of oldRecipe.
var oldRecipeFailures = []string{
	"a process of a pod is not in kubepods.slice: pause /",
	"a process of a pod is not in kubepods.slice: guest-test /",
	"a pod with dnsPolicy Default has nameserver 127.0.0.53",
	"in path [/usr/lib/cni]", // the plugins of the pod network are in /opt/cni/bin
}

// oldRecipe removes from the kubeadm recipe what pods need: containerd keeps the configuration of its Debian package, with
// another cgroup driver than the kubelet's and another directory of network plugins, and pods with dnsPolicy Default use
// systemd-resolved.
func oldRecipe(t *testing.T, _ *env, kit *harness.Kit) {
	t.Helper()
	changeUserData(t, kit.Templates, map[string]string{
		"path: /etc/containerd/config.toml": "path: /etc/containerd/unused.toml",
		"echo 'resolvConf: /run/systemd/resolve/resolv.conf' >> /etc/kubernetes/kubelet-config.yaml": "true",
	})
}

// changeUserData replaces parts of a recipe's user data, each of which it must contain once.
func changeUserData(t *testing.T, recipe *corev1.Secret, changes map[string]string) {
	t.Helper()
	userData := recipe.StringData["user-data"]
	for from, to := range changes {
		if count := strings.Count(userData, from); count != 1 {
			t.Fatalf("the recipe contains %q %d times, want once", from, count)
		}
		userData = strings.Replace(userData, from, to, 1)
	}
	recipe.StringData["user-data"] = userData
}

// recorder collects what checks report.
type recorder struct {
	testing.TB
	failures []string
}

// Errorf records a failure.
func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

// checkExpected runs all checks, which must report exactly the expected failures of the case.
func (n *node) checkExpected(t *testing.T) {
	t.Helper()
	if len(n.c.failures) == 0 {
		n.checkAll(t)
		return
	}
	n.createHostPod(t) // now, because the kubelet restarts it less and less often
	r := &recorder{TB: t}
	n.checkAll(r)
	for _, failure := range r.failures {
		if slices.ContainsFunc(n.c.failures, func(want string) bool { return strings.Contains(failure, want) }) {
			t.Logf("expected failure: %s", failure)
		} else {
			t.Errorf("unexpected failure: %s", failure)
		}
	}
	for _, want := range n.c.failures {
		if !slices.ContainsFunc(r.failures, func(failure string) bool { return strings.Contains(failure, want) }) {
			t.Errorf("no check reports %q", want)
		}
	}
}
