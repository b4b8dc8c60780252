// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

const controllerStartTimeout = time.Minute

// ControllerOptions configure the controller process.
type ControllerOptions struct {
	// Binary is the path of the controller.
	Binary string
	// Dir is the directory of the cloud config and the log.
	Dir        string
	Kubeconfig string
	Clusters   []Cluster
	// PollInterval is how often the controller polls Proxmox. Zero means the controller's
	// default.
	PollInterval time.Duration
	FeatureGates string
	// Args are additional flags.
	Args []string
	// Durations replace durations that are no settings: name=duration, separated by commas.
	Durations string
	// Hostname is the host name that the controller sees, and thus its name in the Lease.
	// Empty means the machine's.
	Hostname string
}

// TestDurations is the variable with ControllerOptions.Durations.
const TestDurations = "KARPENTER_PROXMOX_TEST_DURATIONS"

// Controller is a process of the controller binary that can be killed and restarted.
type Controller struct {
	options ControllerOptions
	log     string
	// ports of the health probes and of the metrics, the same after a restart
	ports   []int
	process *process
	// override replaces the default flags and environment if it is set.
	override *commandLine
}

// NewController writes the cloud config and returns a controller that is not started yet.
func NewController(o ControllerOptions) (*Controller, error) {
	c, err := newController(o)
	if err != nil {
		return nil, err
	}
	return c, c.Configure(o.Clusters...)
}

func newController(o ControllerOptions) (*Controller, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating controller directory: %w", err)
	}
	ports, err := FreePorts(2)
	if err != nil {
		return nil, err
	}
	return &Controller{options: o, log: filepath.Join(o.Dir, "controller.log"), ports: ports}, nil
}

// Configure writes a new cloud config, which takes effect at the next start.
func (c *Controller) Configure(clusters ...Cluster) error {
	content, err := yaml.Marshal(map[string]any{"clusters": clusters})
	if err != nil {
		return fmt.Errorf("encoding cloud config: %w", err)
	}
	if err := os.WriteFile(c.CloudConfig(), content, 0o600); err != nil {
		return fmt.Errorf("writing cloud config: %w", err)
	}
	return nil
}

// CloudConfig returns the path of the cloud config.
func (c *Controller) CloudConfig() string { return filepath.Join(c.options.Dir, "cloud-config.yaml") }

// Log returns the path of the log. A restart appends to it.
func (c *Controller) Log() string { return c.log }

// Running reports whether the process is running.
func (c *Controller) Running() bool { return c.process != nil && c.process.running() }

// Start starts the controller and returns when it is ready. It fails if the process ends or is
// not ready in time.
func (c *Controller) Start(ctx context.Context) error {
	if err := c.StartProcess(); err != nil {
		return err
	}
	if err := until(ctx, controllerStartTimeout, c.process, c.ready); err != nil {
		c.process.kill()
		return fmt.Errorf("starting controller: %w", err)
	}
	return nil
}

// StartProcess starts the controller, which may not be ready as long as Proxmox is unreachable.
func (c *Controller) StartProcess() (err error) {
	c.process, err = startProcessOn(c.options.Hostname, "controller", c.log, c.command())
	return err
}

// Run runs the controller until it exits or the context ends, and returns its output and exit
// code. Use it for controllers that are expected to refuse their configuration.
func (c *Controller) Run(ctx context.Context) (output string, exit int, err error) {
	if c.process, err = startProcess("controller", c.log, c.command()); err != nil {
		return "", 0, err
	}
	select {
	case <-c.process.done:
	case <-ctx.Done():
		c.process.kill()
		return Tail(c.log, 50), 0, fmt.Errorf("waiting for controller to exit: %w", ctx.Err())
	}
	content, err := os.ReadFile(c.log)
	return string(content), c.process.cmd.ProcessState.ExitCode(), err
}

func (c *Controller) command() *exec.Cmd {
	probes := []string{"--health-probe-port", strconv.Itoa(c.ports[0]), "--metrics-port", strconv.Itoa(c.ports[1])}
	if c.override != nil {
		cmd := exec.Command(c.options.Binary, slices.Concat(c.override.args, probes)...)
		cmd.Env = append(c.override.env, "KUBECONFIG="+c.options.Kubeconfig)
		return cmd
	}
	args := []string{
		"--cloud-config", c.CloudConfig(),
		"--batch-idle-duration", "1s",
		// A restarted controller would have to wait until the lease of the killed one expires.
		"--disable-leader-election",
	}
	if c.options.PollInterval > 0 {
		args = append(args, "--proxmox-poll-interval", c.options.PollInterval.String())
	}
	if c.options.FeatureGates != "" {
		args = append(args, "--feature-gates", c.options.FeatureGates)
	}
	cmd := exec.Command(c.options.Binary, slices.Concat(args, probes, c.options.Args)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.options.Kubeconfig, "SYSTEM_NAMESPACE=kube-system", TestDurations+"="+c.options.Durations)
	return cmd
}

func (c *Controller) ready(ctx context.Context) error {
	_, err := fetch(ctx, fmt.Sprintf("http://127.0.0.1:%d/readyz", c.ports[0]))
	return err
}

// Kill sends SIGKILL and waits until the controller has ended.
func (c *Controller) Kill() {
	if c.process != nil {
		c.process.kill()
	}
}

// Stop sends SIGTERM, as Kubernetes does, and SIGKILL after a grace period.
func (c *Controller) Stop() {
	if c.process != nil {
		c.process.stop(stopGracePeriod)
	}
}

// Done returns a channel that is closed when the controller has ended.
func (c *Controller) Done() <-chan struct{} { return c.process.done }

// ExitError describes how the controller ended, with the end of its log.
func (c *Controller) ExitError() error { return c.process.exitError() }

// MetricsURL returns the URL of the controller's metrics server.
func (c *Controller) MetricsURL() string { return fmt.Sprintf("http://127.0.0.1:%d", c.ports[1]) }

// Metrics returns the controller's metrics in text format.
func (c *Controller) Metrics(ctx context.Context) (string, error) {
	content, err := fetch(ctx, c.MetricsURL()+"/metrics")
	return string(content), err
}

// MetricFamilies returns the controller's metrics by name.
func (c *Controller) MetricFamilies(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	content, err := fetch(ctx, c.MetricsURL()+"/metrics")
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(content))
	if err != nil {
		return nil, fmt.Errorf("parsing controller metrics: %w", err)
	}
	return families, nil
}

// Metric returns the sum of a counter's or gauge's series whose labels include the given ones.
// It fails if the metric does not exist.
func (c *Controller) Metric(ctx context.Context, name string, labels map[string]string) (float64, error) {
	families, err := c.MetricFamilies(ctx)
	if err != nil {
		return 0, err
	}
	family, ok := families[name]
	if !ok {
		return 0, fmt.Errorf("controller has no metric %s", name)
	}
	sum := 0.0
	for _, series := range family.Metric {
		matching := 0
		for _, pair := range series.Label {
			if value, ok := labels[pair.GetName()]; ok && value == pair.GetValue() {
				matching++
			}
		}
		if matching == len(labels) {
			sum += series.GetCounter().GetValue() + series.GetGauge().GetValue()
		}
	}
	return sum, nil
}

func fetch(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s returned %s: %s", url, response.Status, strings.TrimSpace(string(body)))
	}
	return body, err
}

// FreePorts returns n different unused ports. All are held until it returns, so they differ. They
// are below the ports that Linux gives to outgoing connections: a connection could otherwise take
// one before a process listens on it.
func FreePorts(n int) ([]int, error) {
	const first, end = 10_000, 32_000
	var ports []int
	for range 1000 {
		if len(ports) == n {
			return ports, nil
		}
		port := first + rand.IntN(end-first)
		listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			continue
		}
		defer listener.Close()
		ports = append(ports, port)
	}
	return nil, fmt.Errorf("finding free ports: found %d from %d to %d, want %d", len(ports), first, end, n)
}

// NewInstalledController returns a controller that runs as its Deployment would run it: with
// the same arguments, environment, mounted Secret, and permissions of the ServiceAccount. Only
// the ports differ, because all controllers share one machine.
func NewInstalledController(ctx context.Context, plane *Plane, name client.ObjectKey, o ControllerOptions) (*Controller, error) {
	deployment := &appsv1.Deployment{}
	if err := plane.Client.Get(ctx, name, deployment); err != nil {
		return nil, fmt.Errorf("reading Deployment: %w", err)
	}
	return newPodController(ctx, plane, name.Namespace, deployment.Spec.Template.Spec, o)
}

// NewPodController returns a controller that runs as the container of a pod of its Deployment.
// Its host name is the pod's.
func NewPodController(ctx context.Context, plane *Plane, pod *corev1.Pod, o ControllerOptions) (*Controller, error) {
	o.Hostname = pod.Name
	return newPodController(ctx, plane, pod.Namespace, pod.Spec, o)
}

func newPodController(ctx context.Context, plane *Plane, namespace string, pod corev1.PodSpec, o ControllerOptions) (*Controller, error) {
	c, err := newController(o)
	if err != nil {
		return nil, err
	}
	if c.options.Kubeconfig, err = plane.writeKubeconfig(ctx, o.Dir, client.ObjectKey{Namespace: namespace, Name: pod.ServiceAccountName}); err != nil {
		return nil, err
	}
	if err := c.mount(ctx, plane.Client, namespace, pod.Volumes); err != nil {
		return nil, err
	}
	c.override = &commandLine{env: environment(namespace, pod.Containers[0].Env)}
	for _, arg := range pod.Containers[0].Args {
		flag, _, _ := strings.Cut(arg, "=")
		switch flag {
		case "--cloud-config":
			c.override.args = append(c.override.args, flag+"="+c.CloudConfig())
		case "--metrics-port", "--health-probe-port": // set by the harness
		default:
			c.override.args = append(c.override.args, arg)
		}
	}
	return c, nil
}

// commandLine holds arguments and environment; the harness only adds ports.
type commandLine struct{ args, env []string }

// writeKubeconfig writes a kubeconfig for a ServiceAccount and returns its path.
func (p *Plane) writeKubeconfig(ctx context.Context, dir string, account client.ObjectKey) (string, error) {
	object := &corev1.ServiceAccount{}
	if err := p.Client.Get(ctx, account, object); err != nil {
		return "", fmt.Errorf("reading ServiceAccount: %w", err)
	}
	// Longer than any test, because the kubeconfig is not renewed.
	seconds := int64(24 * time.Hour / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	if err := p.Client.SubResource("token").Create(ctx, object, request); err != nil {
		return "", fmt.Errorf("requesting token for ServiceAccount: %w", err)
	}
	config, file := rest.AnonymousClientConfig(p.Config), filepath.Join(dir, "kubeconfig")
	config.BearerToken = request.Status.Token
	return file, WriteKubeconfig(file, config)
}

// WriteKubeconfig writes a kubeconfig for the API server and the credentials of a configuration.
func WriteKubeconfig(file string, config *rest.Config) error {
	out := clientcmdapi.NewConfig()
	out.Clusters["cluster"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	out.AuthInfos["user"] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken}
	out.Contexts["default"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: "user"}
	out.CurrentContext = "default"
	if err := clientcmd.WriteToFile(*out, file); err != nil {
		return fmt.Errorf("writing kubeconfig: %w", err)
	}
	return nil
}

// mount writes the mounted Secret's cloud config to the controller's path. The controllers of other
// providers have none.
func (c *Controller) mount(ctx context.Context, kube client.Client, namespace string, volumes []corev1.Volume) error {
	for _, volume := range volumes {
		if volume.Secret == nil || len(volume.Secret.Items) != 1 {
			continue
		}
		secret := &corev1.Secret{}
		if err := kube.Get(ctx, client.ObjectKey{Namespace: namespace, Name: volume.Secret.SecretName}, secret); err != nil {
			return fmt.Errorf("reading Secret of volume %s: %w", volume.Name, err)
		}
		return os.WriteFile(c.CloudConfig(), secret.Data[volume.Secret.Items[0].Key], 0o600)
	}
	return nil
}

func environment(namespace string, variables []corev1.EnvVar) []string {
	var env []string
	for _, variable := range variables {
		value := variable.Value
		if from := variable.ValueFrom; from != nil {
			if from.FieldRef == nil || from.FieldRef.FieldPath != "metadata.namespace" {
				continue // container limits do not apply here
			}
			value = namespace
		}
		env = append(env, variable.Name+"="+value)
	}
	return env
}
