// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// restartDelay is the delay before a container that failed is restarted.
const restartDelay = time.Second

// systemPod is a pod on the system node.
type systemPod struct {
	name, address string
	since         metav1.Time
	controller    *harness.Controller // nil for other pods
	// cancel ends the process; done is closed when it has ended.
	cancel context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	ready    bool
	restarts int32
	last     corev1.PodStatus // the last reported status
}

// startPod starts the process of a new pod in the background: it takes seconds to be ready.
func (n *systemNode) startPod(ctx context.Context, pod *corev1.Pod, address string) (*systemPod, error) {
	p := &systemPod{name: pod.Name, address: address, since: metav1.Now(), done: make(chan struct{})}
	ctx, p.cancel = context.WithCancel(ctx)
	if pod.Labels["app.kubernetes.io/instance"] != release {
		p.ready = true
		close(p.done)
		return p, nil
	}
	var err error
	p.controller, err = harness.NewPodController(ctx, n.plane, pod, harness.ControllerOptions{Binary: n.binary, Dir: filepath.Join(n.dir, pod.Name)})
	if err != nil {
		p.cancel()
		return nil, err
	}
	go p.run(ctx)
	return p, nil
}

// run keeps the controller running until the context ends.
func (p *systemPod) run(ctx context.Context) {
	defer close(p.done)
	for {
		err := p.controller.Start(ctx)
		if err == nil {
			p.set(true, 0)
			select {
			case <-ctx.Done():
				p.controller.Stop()
				return
			case <-p.controller.Done():
				err = p.controller.ExitError()
			}
		}
		if ctx.Err() != nil {
			return
		}
		logf("restarting %s: %v", p.name, err)
		p.set(false, 1)
		select {
		case <-ctx.Done():
			return
		case <-time.After(restartDelay):
		}
	}
}

func (p *systemPod) set(ready bool, restarts int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = ready
	p.restarts += restarts
}

// status returns what a kubelet reports for the pod, and whether that differs from the last
// report.
func (p *systemPod) status(pod *corev1.Pod) (status corev1.PodStatus, changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := p.last.ContainerStatuses; len(last) > 0 && last[0].Ready == p.ready && last[0].RestartCount == p.restarts {
		return p.last, false
	}
	ready := corev1.ConditionFalse
	if p.ready {
		ready = corev1.ConditionTrue
	}
	kinds := []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady}
	status = corev1.PodStatus{Phase: corev1.PodRunning, HostIP: "127.0.0.1", PodIP: p.address, PodIPs: []corev1.PodIP{{IP: p.address}}, StartTime: &p.since}
	status.Conditions = slices.DeleteFunc(slices.Clone(pod.Status.Conditions), func(c corev1.PodCondition) bool { return slices.Contains(kinds, c.Type) })
	for _, kind := range kinds {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: ready, LastTransitionTime: metav1.Now()})
	}
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Ready: p.ready, Started: new(p.ready), RestartCount: p.restarts,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: p.since}},
		})
	}
	return status, true
}

func (p *systemPod) reported(status corev1.PodStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = status
}

// kubeletServer is what the API server calls on the system node: logs and port forwarding of
// the controller's pods.
type kubeletServer struct {
	node   *systemNode
	server *httptest.Server
	port   int32
}

func startKubeletServer(node *systemNode) (*kubeletServer, error) {
	k := &kubeletServer{node: node}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", k.logs)
	mux.HandleFunc("/portForward/{namespace}/{pod}", k.portForward)
	k.server = httptest.NewUnstartedServer(mux)
	k.server.TLS = &tls.Config{NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12} // HTTP/2 cannot be upgraded to SPDY
	k.server.StartTLS()
	address, ok := k.server.Listener.Addr().(*net.TCPAddr)
	if !ok {
		return nil, errors.New("starting kubelet: TCP listener has no TCP address")
	}
	k.port = int32(address.Port)
	return k, nil
}

// logs returns where the log is. The suites print it after each spec, and it grows.
func (k *kubeletServer) logs(w http.ResponseWriter, r *http.Request) {
	pod := k.node.find(r.PathValue("pod"))
	if pod == nil {
		http.Error(w, "pod not found", http.StatusNotFound)
		return
	}
	fmt.Fprintln(w, pod.controller.Log())
}

func (k *kubeletServer) portForward(w http.ResponseWriter, r *http.Request) {
	portforward.ServePortForward(w, r, k, r.PathValue("pod"), "", nil, time.Hour, time.Minute, []string{portforward.ProtocolV1Name})
}

// PortForward copies data between a stream and the controller's metrics, which have another
// port than in a real pod.
func (k *kubeletServer) PortForward(ctx context.Context, name, _ string, _ int32, stream io.ReadWriteCloser) error {
	pod := k.node.find(name)
	if pod == nil {
		return fmt.Errorf("forwarding port: pod %s not found", name)
	}
	target, err := url.Parse(pod.controller.MetricsURL())
	if err != nil {
		return fmt.Errorf("forwarding port: %w", err)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", target.Host)
	if err != nil {
		return fmt.Errorf("forwarding port: %w", err)
	}
	defer func() { _ = conn.Close() }()
	go func() { _, _ = io.Copy(conn, stream) }()
	if _, err = io.Copy(stream, conn); err != nil {
		return fmt.Errorf("forwarding port: %w", err)
	}
	return nil
}

func (k *kubeletServer) close() { k.server.Close() }

// logf writes to the log of the world.
func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
}
