// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

const (
	// Emulated guests are slow.
	shutdownTimeout = 2 * time.Minute
	agentTimeout    = 5 * time.Minute
)

// rejoinsAfterReset resets the VM, which has neither boot data nor join token any more. The same Node must become ready
// with the certificate that it has, and its pods must restart.
func (n *node) rejoinsAfterReset(t *testing.T) {
	t.Helper()
	for key, value := range n.vm.Config {
		if text, _ := value.(string); strings.Contains(text, ".iso") {
			t.Errorf("drive %s still has %s", key, text)
		}
	}
	tokens, err := harness.JoinTokens(t.Context(), n.kube)
	must(t, err)
	if len(tokens) > 0 {
		t.Errorf("there are still %d join tokens", len(tokens))
	}
	// A reset shortly after the network was configured has this effect.
	n.run(t, "truncate --size=0 /var/lib/cni/results/* && sync")
	containers, err := n.containers(t.Context())
	must(t, err)
	requests, was, began := n.certificateRequests(t), n.node.DeepCopy(), time.Now()
	must(t, n.proxmox.API.Reset(t.Context(), n.vm))
	n.within(t, bootTimeout, "Node "+was.Name+" to be Ready after a reset", func(ctx context.Context) error {
		if err := n.read(ctx); err != nil {
			return err
		}
		switch {
		case n.node.UID != was.UID:
			return errors.New("the Node was recreated")
		case n.node.Status.NodeInfo.BootID == was.Status.NodeInfo.BootID:
			return fmt.Errorf("its boot ID is still %s", was.Status.NodeInfo.BootID)
		case !harness.NodeReady(n.node):
			return errors.New("it is not Ready")
		}
		return nil
	})
	t.Logf("Ready %.0f s after a reset without boot data", time.Since(began).Seconds())
	n.within(t, bootTimeout, "the pods to restart", func(ctx context.Context) error {
		now, err := n.containers(ctx)
		if err == nil && slices.ContainsFunc(now, func(id string) bool { return slices.Contains(containers, id) }) {
			err = errors.New("there is a container of the last boot")
		}
		return err
	})
	t.Logf("pods run %.0f s after the reset", time.Since(began).Seconds())
	if now := n.certificateRequests(t); now != requests {
		t.Errorf("the Node requested %d more certificates after the reset", now-requests)
	}
}

// containers returns the IDs of the containers of the case. It fails if a pod is not ready.
func (n *node) containers(ctx context.Context) (ids []string, err error) {
	pods, err := harness.Pods(ctx, n.kube, n.c.name)
	if err != nil {
		return nil, err
	}
	for _, pod := range pods {
		if len(pods) != n.c.count() || !harness.PodReady(&pod) {
			return nil, errors.New(podStates(pods))
		}
		ids = append(ids, pod.Status.ContainerStatuses[0].ContainerID)
	}
	return ids, nil
}

// certificateRequests returns the number of client certificates that kubelets requested.
func (n *node) certificateRequests(t *testing.T) (count int) {
	t.Helper()
	list := &certificatesv1.CertificateSigningRequestList{}
	must(t, n.kube.List(t.Context(), list))
	for _, request := range list.Items {
		if request.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName {
			count++
		}
	}
	return count
}

// delete deletes the Nodes of a case and checks that their guests shut down in order.
func (e *env) delete(t *testing.T, c testCase, nodes []*node) {
	t.Helper()
	must(t, e.kube.Delete(t.Context(), harness.Deployment(c.name, 0), client.PropagationPolicy(metav1.DeletePropagationForeground)))
	began := time.Now()
	for _, n := range nodes {
		must(t, e.kube.Delete(t.Context(), n.claim))
	}
	for _, n := range nodes {
		e.within(t, deleteTimeout, "NodeClaim "+n.claim.Name+" to be deleted", func(ctx context.Context) error {
			return notFound(e.kube.Get(ctx, client.ObjectKeyFromObject(n.claim), n.claim), "it")
		})
		t.Logf("NodeClaim %s deleted after %.0f s", n.claim.Name, time.Since(began).Seconds())
		n.checkPowerOff(t)
	}
}

// shutdownTimeout returns the controller's timeout for the shutdown of guests.
func (c testCase) shutdownTimeout() time.Duration {
	if c.hardStop {
		return 0
	}
	return shutdownTimeout
}

// checkPowerOff checks that the guest powered itself off when it was asked to, or that it was stopped without a shutdown.
func (n *node) checkPowerOff(t *testing.T) {
	t.Helper()
	var tasks []struct {
		Type, ID, Status   string
		Starttime, Endtime int64
	}
	must(t, n.proxmox.API.Call(t.Context(), http.MethodGet, "/nodes/"+n.vm.Host+"/tasks", nil, &tasks))
	want, found := map[bool]string{true: "qmstop", false: "qmshutdown"}[n.c.hardStop], false
	for _, task := range tasks {
		if task.ID != strconv.Itoa(n.vm.VMID) || task.Type != "qmstop" && task.Type != "qmshutdown" {
			continue
		}
		t.Logf("task %s of VM %d took %d s: %s", task.Type, n.vm.VMID, task.Endtime-task.Starttime, task.Status)
		found = true
		if task.Type != want || task.Status != "OK" {
			t.Errorf("task %s of VM %d: %s, want %s: OK", task.Type, n.vm.VMID, task.Status, want)
		}
	}
	if !found {
		t.Errorf("VM %d has no task %s", n.vm.VMID, want)
	}
	console := n.guests.Console(n.vm.VMID)
	orderly := strings.Contains(console, "Power down") || strings.Contains(console, "Powering off")
	if orderly == n.c.hardStop {
		t.Errorf("VM %d: found an orderly shutdown: %t, want %t; its console:\n%s", n.vm.VMID, orderly, !n.c.hardStop, harness.Tail(n.guests.ConsoleLog(n.vm.VMID), 20))
	}
}
