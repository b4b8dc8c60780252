// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpapis "sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// planeStartTimeout is much longer than the usual five seconds, because machines that run
// tests are busy.
const planeStartTimeout = 2 * time.Minute

// PlaneOptions configure the control plane.
type PlaneOptions struct {
	// Binary is the path of kubeplane.
	Binary string
	// Dir is the directory of its files and logs. It must be new or empty.
	Dir string
	// NodeMonitorGracePeriod is how long a Node may miss heartbeats. Zero means kubeplane's
	// default.
	NodeMonitorGracePeriod time.Duration
	// Audit records every API request in logs/audit.log.
	Audit bool
	// NodeAddress is an IP address of this machine at which Nodes reach the API server. If it
	// is empty, the API server is reachable on loopback only.
	NodeAddress string
	// ServerIPs are further addresses in the API server's certificate, for Nodes that reach it
	// through another forwarder.
	ServerIPs []string
}

// Plane is a running Kubernetes control plane.
type Plane struct {
	// Kubeconfig is the path of an administrator's kubeconfig.
	Kubeconfig string
	// Server is the URL at which Nodes reach the API server, for boot data.
	Server string
	// Dir has the logs of the components in its logs directory.
	Dir    string
	Config *rest.Config
	// Client reads without a cache and knows every type that we use.
	Client client.WithWatch

	binary    string
	process   *process
	scheduler *process
	forward   *Forward
}

// StartPlane starts a control plane and returns when pods can be created, scheduled and
// controlled.
func StartPlane(ctx context.Context, o PlaneOptions) (*Plane, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating control plane directory: %w", err)
	}
	ready := filepath.Join(o.Dir, "ready.json")
	args := []string{"up", "--dir", filepath.Join(o.Dir, "plane"), "--ready-file", ready, "--exit-with-parent"}
	if o.Audit {
		args = append(args, "--audit")
	}
	if o.NodeMonitorGracePeriod > 0 {
		args = append(args, "--node-monitor-grace-period", o.NodeMonitorGracePeriod.String())
	}
	if o.NodeAddress != "" {
		args = append(args, "--server-ip", o.NodeAddress)
	}
	for _, ip := range o.ServerIPs {
		args = append(args, "--server-ip", ip)
	}
	cmd := exec.Command(o.Binary, args...)
	// Less garbage collection: the API server takes most of the CPU of a test with many Nodes.
	cmd.Env = append(os.Environ(), "GOGC=300")
	p, err := startProcess("kubeplane", filepath.Join(o.Dir, "kubeplane.log"), cmd)
	if err != nil {
		return nil, err
	}
	plane := &Plane{binary: o.Binary, process: p}
	err = until(ctx, planeStartTimeout, p, func(context.Context) error { return plane.read(ready) })
	if err != nil {
		plane.Stop()
		return nil, fmt.Errorf("starting control plane: %w", err)
	}
	if o.NodeAddress != "" {
		plane.forward, err = StartForward(ctx, net.JoinHostPort(o.NodeAddress, "0"), strings.TrimPrefix(plane.Server, "https://"))
		if err != nil {
			plane.Stop()
			return nil, err
		}
		plane.Server = "https://" + plane.forward.Address()
	}
	return plane, nil
}

// read reads kubeplane's ready file.
func (p *Plane) read(file string) error {
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("not ready yet")
	}
	if err != nil {
		return err
	}
	var report struct{ Kubeconfig, Server, Dir string }
	if err := json.Unmarshal(content, &report); err != nil {
		return fmt.Errorf("reading %s: %w", file, err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", report.Kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1 // no client-side rate limit
	scheme, err := Scheme()
	if err != nil {
		return err
	}
	if p.Client, err = client.NewWithWatch(config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	p.Kubeconfig, p.Server, p.Dir, p.Config = report.Kubeconfig, report.Server, report.Dir, config
	return nil
}

// StartScheduler starts a second kube-scheduler with the given configuration file, which must
// not have a profile of the first one. It ends with the control plane.
func (p *Plane) StartScheduler(config string) (err error) {
	cmd := exec.Command(p.binary, "kube-scheduler", "--config", config, "--secure-port", "0")
	p.scheduler, err = startProcess("kube-scheduler", filepath.Join(filepath.Dir(config), "kube-scheduler.log"), cmd)
	return err
}

// Stop ends the control plane and all of its processes.
func (p *Plane) Stop() {
	if p.scheduler != nil {
		p.scheduler.kill()
	}
	if p.forward != nil {
		p.forward.Close()
	}
	p.process.stop(10 * time.Second)
}

// Done returns a channel that is closed when the control plane has ended.
func (p *Plane) Done() <-chan struct{} { return p.process.done }

// ExitError describes how the control plane ended, with the end of its log.
func (p *Plane) ExitError() error { return p.process.exitError() }

// Scheme returns a new scheme with Kubernetes', Karpenter's and our types. It does not change
// client-go's scheme, which is shared and may be read concurrently.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("building scheme: %w", err)
		}
	}
	karpenter := schema.GroupVersion{Group: karpapis.Group, Version: "v1"}
	scheme.AddKnownTypes(karpenter, &karpv1.NodePool{}, &karpv1.NodePoolList{}, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{})
	metav1.AddToGroupVersion(scheme, karpenter)
	return scheme, nil
}

// until polls check while the process is running. At the timeout it returns the last error of
// check with the end of the log.
func until(ctx context.Context, timeout time.Duration, p *process, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return p.exitError()
		case <-ctx.Done():
			return fmt.Errorf("%w after %s: %w; the end of %s:\n%s", ctx.Err(), timeout, err, p.log, Tail(p.log, 15))
		case <-tick.C:
		}
	}
}

// Forward forwards TCP connections to another address until it is closed.
type Forward struct {
	listener net.Listener
	target   string

	mu     sync.Mutex
	closed bool
	conns  []net.Conn
}

// StartForward listens on an address, which may have port 0, and forwards to target.
func StartForward(ctx context.Context, listen, target string) (*Forward, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("listening on %s to forward to %s: %w", listen, target, err)
	}
	f := &Forward{listener: listener, target: target}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go f.pass(conn)
		}
	}()
	return f, nil
}

// Address returns the address that it listens on.
func (f *Forward) Address() string { return f.listener.Addr().String() }

func (f *Forward) pass(in net.Conn) {
	out, err := (&net.Dialer{}).Dial("tcp", f.target)
	if err != nil {
		_ = in.Close()
		return
	}
	f.mu.Lock()
	f.conns = append(f.conns, in, out)
	closed := f.closed
	f.mu.Unlock()
	if closed {
		_, _ = in.Close(), out.Close()
		return
	}
	go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
	_, _ = io.Copy(in, out)
	_ = in.Close()
}

// Close stops listening and closes all connections.
func (f *Forward) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	_ = f.listener.Close()
	for _, conn := range f.conns {
		_ = conn.Close()
	}
	f.conns = nil
}
