// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plane runs a Kubernetes control plane on this machine until it is stopped.
//
// A plane is four child processes of the one binary that this package is linked into: etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler. Processes, not goroutines: Kubernetes keeps much state in globals, and
// a process can be ended for certain. However the parent ends, the children end with it.
package plane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// startTimeout is far above the five seconds that a start takes: machines that run tests are busy ones.
const startTimeout = 2 * time.Minute

// Options configure a plane.
type Options struct {
	// Dir is where everything lives. Empty: a temporary directory, removed at the end unless Keep.
	Dir  string
	Keep bool
	// NodeMonitorGracePeriod is how long a Node may be silent before it counts as dead.
	NodeMonitorGracePeriod time.Duration
	// FeatureGates go to all three Kubernetes components: A=true,B=false.
	FeatureGates string
	// RuntimeConfig selects the served API versions; feature gates of alpha and beta APIs need theirs: api/beta=true.
	RuntimeConfig string
	// Audit records every request in logs/audit.log, with what writes contain, except for Secrets and ConfigMaps.
	Audit bool
	// ServerIPs are further addresses that the API server's certificate is good for: it listens on loopback alone, but may
	// be reached through something that forwards to it.
	ServerIPs []net.IP
	// KubeconfigOut is one more place for the administrator's kubeconfig.
	KubeconfigOut string
	// ReadyFile is written, as a Report, once the plane is ready, and removed at the end.
	ReadyFile string
}

// plane is one control plane from start to end. It is used by one goroutine, locked to its OS thread.
type plane struct {
	Options
	home      *home
	ports     ports
	processes []*process
	ended     func(*process, error)
	progress  io.Writer
	began     time.Time
}

// Up starts a plane, prints to out how to reach it, and blocks until ctx ends (nil) or a component exits (an error).
func Up(ctx context.Context, o Options, out, progress io.Writer) (err error) {
	// The children die with the thread that forked them: this one, which therefore must stay ours.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	h, err := openHome(o.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close(o.Keep || isDeath(err))) }()
	p := &plane{Options: o, home: h, progress: progress, began: time.Now()}
	if p.ports, err = reservePorts(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.ports.release()) }()

	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	p.ended = func(child *process, cause error) {
		if running.Err() == nil { // else it ends because we do
			stop(child.died(cause))
		}
	}
	defer func() { err = errors.Join(err, p.down(stop)) }()

	if err = p.bringUp(running); err == nil {
		err = p.announce(out)
	}
	if err == nil {
		<-running.Done()
	}
	switch cause := context.Cause(running); {
	case isDeath(cause):
		return cause // and not what became of it elsewhere
	case err == nil:
		p.printf("stopping: %v", cause)
	}
	return err
}

func (p *plane) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(p.progress, "kubeplane: %4.1fs %s\n", time.Since(p.began).Seconds(), fmt.Sprintf(format, args...))
}

// bringUp returns when a pod can be created, scheduled and controlled.
func (p *plane) bringUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("timed out after %s", startTimeout))
	defer cancel()
	if err := p.writeFiles(); err != nil {
		return err
	}
	p.printf("credentials and logs are in %s", p.home.path())
	health, client, err := p.clients()
	if err != nil {
		return err
	}
	defer health.CloseIdleConnections()
	store := etcdComponent(p.home.layout, p.ports)
	server := apiServerComponent(p.home.layout, p.ports, p.Options)
	if err := p.start(store, server); err != nil {
		return err
	}
	for _, c := range []component{store, server} {
		if err := p.await(ctx, c.name, healthy(health, c.ready)); err != nil {
			return err
		}
	}
	// Only now: the controller manager exits if the API server does not respond within ten seconds.
	manager := controllerManagerComponent(p.home.layout, p.ports, p.Options)
	binder := schedulerComponent(p.home.layout, p.ports, p.Options)
	if err := p.start(manager, binder); err != nil {
		return err
	}
	if err := poll(ctx, "the role bindings", func(ctx context.Context) error { return bindRoles(ctx, client) }); err != nil {
		return err
	}
	for _, c := range []component{manager, binder} {
		if err := p.await(ctx, c.name, healthy(health, c.ready)); err != nil {
			return err
		}
	}
	return p.await(ctx, "the default service account", podsAdmissible(client))
}

func (p *plane) writeFiles() error {
	if err := writeCredentials(p.home.layout, p.ports.apiServer.url("https"), p.ServerIPs); err != nil {
		return err
	}
	if !p.Audit {
		return nil
	}
	const everyRequest = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata, resources: [{resources: [secrets, configmaps]}]}, {level: Metadata, verbs: [get, list, watch]}, {level: Request}]
`
	if err := os.WriteFile(p.home.auditPolicy(), []byte(everyRequest), 0o600); err != nil {
		return fmt.Errorf("writing the audit policy: %w", err)
	}
	return nil
}

func (p *plane) start(components ...component) error {
	for _, c := range components {
		child, err := startProcess(c, p.home.layout, p.ended)
		if err != nil {
			return err
		}
		p.processes = append(p.processes, child)
	}
	return nil
}

func (p *plane) await(ctx context.Context, what string, ask func(context.Context) error) error {
	err := poll(ctx, what, ask)
	if err == nil {
		p.printf("%s is ready", what)
	}
	return err
}

// clients are the administrator's, for plain requests and for objects.
func (p *plane) clients() (*http.Client, kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", p.home.adminKubeconfig())
	if err != nil {
		return nil, nil, fmt.Errorf("reading the administrator's kubeconfig: %w", err)
	}
	config.Timeout = 5 * time.Second
	config.QPS = -1 // polls are paced by themselves
	plain, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, nil, fmt.Errorf("creating an HTTP client: %w", err)
	}
	client, err := kubernetes.NewForConfigAndClient(config, plain)
	if err != nil {
		return nil, nil, fmt.Errorf("creating a Kubernetes client: %w", err)
	}
	return plain, client, nil
}

// announce reports that the plane is ready, as text and as a file.
func (p *plane) announce(out io.Writer) error {
	kubeconfig := p.home.adminKubeconfig()
	if p.KubeconfigOut != "" {
		content, err := os.ReadFile(kubeconfig)
		if err != nil {
			return fmt.Errorf("reading the administrator's kubeconfig: %w", err)
		}
		kubeconfig = p.KubeconfigOut
		if err := os.WriteFile(kubeconfig, content, 0o600); err != nil {
			return fmt.Errorf("writing --kubeconfig-out: %w", err)
		}
	}
	if p.ReadyFile != "" {
		if err := p.report(kubeconfig).write(p.ReadyFile); err != nil {
			return err
		}
	}
	p.printf("the plane is ready at %s", p.ports.apiServer.url("https"))
	if _, err := fmt.Fprintf(out, "export KUBECONFIG=%s\n", kubeconfig); err != nil {
		return fmt.Errorf("printing the kubeconfig's path: %w", err)
	}
	return nil
}

func (p *plane) report(kubeconfig string) Report {
	pids := map[string]int{"kubeplane": os.Getpid()}
	for _, child := range p.processes {
		pids[child.name] = child.cmd.Process.Pid
	}
	return Report{
		Kubeconfig: kubeconfig,
		Server:     p.ports.apiServer.url("https"),
		CAFile:     p.home.pki("ca.crt"),
		Dir:        p.home.path(),
		PIDs:       pids,
	}
}

// down stops the components in reverse order, so none fails because another is missing.
func (p *plane) down(stop context.CancelCauseFunc) error {
	stop(nil) // from here on an ended child is no news
	var err error
	if p.ReadyFile != "" {
		if removed := os.Remove(p.ReadyFile); !errors.Is(removed, os.ErrNotExist) {
			err = removed
		}
	}
	for _, child := range slices.Backward(p.processes) {
		err = errors.Join(err, child.kill())
	}
	return err
}
