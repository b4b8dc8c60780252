// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
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
	"sigs.k8s.io/yaml"
)

const controllerPatience = time.Minute

// ControllerOptions say how to run the controller.
type ControllerOptions struct {
	// Binary is the path of the controller.
	Binary string
	// Dir takes the cloud config and the log.
	Dir        string
	Kubeconfig string
	Clusters   []Cluster
	// PollInterval is how often Proxmox is read; the controller's own default
	// when zero.
	PollInterval time.Duration
	// LeaderElection is off by default: a successor of a killed controller would
	// wait for the lease to run out.
	LeaderElection bool
	FeatureGates   string
	// Args are further flags.
	Args []string
}

// Controller is the controller binary, which can be killed and started again.
type Controller struct {
	options ControllerOptions
	log     string
	health  string
	metrics string
	process *process
	// exact replaces the harness' own idea of how to run the controller.
	exact *exact
}

// NewController writes the cloud config; Start starts.
func NewController(o ControllerOptions) (*Controller, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the controller's directory, %w", err)
	}
	c := &Controller{options: o, log: filepath.Join(o.Dir, "controller.log")}
	return c, c.Configure(o.Clusters...)
}

// Configure writes another cloud config, for the next start.
func (c *Controller) Configure(clusters ...Cluster) error {
	content, err := yaml.Marshal(map[string]any{"clusters": clusters})
	if err != nil {
		return fmt.Errorf("encoding the cloud config, %w", err)
	}
	if err := os.WriteFile(c.CloudConfig(), content, 0o600); err != nil {
		return fmt.Errorf("writing the cloud config, %w", err)
	}
	return nil
}

// CloudConfig is the path of the file that lists the Proxmox clusters.
func (c *Controller) CloudConfig() string { return filepath.Join(c.options.Dir, "cloud-config.yaml") }

// Log is the path of the log; a restart appends to it.
func (c *Controller) Log() string { return c.log }

// PID of the running controller.
func (c *Controller) PID() int { return c.process.pid() }

// Running tells whether the process lives.
func (c *Controller) Running() bool { return c.process != nil && c.process.running() }

// Start starts the controller and returns when it is ready.
func (c *Controller) Start(ctx context.Context) error {
	ports, err := freePorts(2)
	if err != nil {
		return err
	}
	c.health = fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	c.metrics = fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	if c.process, err = startProcess("controller", c.log, c.command(ports)); err != nil {
		return err
	}
	if err := until(ctx, controllerPatience, c.process, c.ready); err != nil {
		c.process.kill()
		return fmt.Errorf("starting the controller, %w", err)
	}
	return nil
}

// Run lets the controller run until it ends by itself or the context does, and
// gives what it wrote. It is for controllers that are expected to refuse.
func (c *Controller) Run(ctx context.Context) (output string, exit int, err error) {
	ports, err := freePorts(2)
	if err != nil {
		return "", 0, err
	}
	if c.process, err = startProcess("controller", c.log, c.command(ports)); err != nil {
		return "", 0, err
	}
	select {
	case <-c.process.done:
	case <-ctx.Done():
		c.process.kill()
		return Tail(c.log, 50), 0, fmt.Errorf("waiting for the controller to end, %w", ctx.Err())
	}
	content, err := os.ReadFile(c.log)
	return string(content), c.process.cmd.ProcessState.ExitCode(), err
}

func (c *Controller) command(ports []int) *exec.Cmd {
	probes := []string{"--health-probe-port", strconv.Itoa(ports[0]), "--metrics-port", strconv.Itoa(ports[1])}
	if c.exact != nil {
		cmd := exec.Command(c.options.Binary, slices.Concat(c.exact.args, probes)...)
		cmd.Env = append(c.exact.env, "KUBECONFIG="+c.options.Kubeconfig)
		return cmd
	}
	args := []string{
		"--cloud-config", c.CloudConfig(),
		"--batch-idle-duration", "1s",
		"--disable-leader-election=" + strconv.FormatBool(!c.options.LeaderElection),
	}
	if c.options.PollInterval > 0 {
		args = append(args, "--proxmox-poll-interval", c.options.PollInterval.String())
	}
	if c.options.FeatureGates != "" {
		args = append(args, "--feature-gates", c.options.FeatureGates)
	}
	cmd := exec.Command(c.options.Binary, slices.Concat(args, probes, c.options.Args)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.options.Kubeconfig, "SYSTEM_NAMESPACE=kube-system")
	return cmd
}

func (c *Controller) ready(ctx context.Context) error {
	_, err := fetch(ctx, c.health+"/readyz")
	return err
}

// Kill ends the controller as kill -9 does.
func (c *Controller) Kill() {
	if c.process != nil {
		c.process.kill()
	}
}

// Stop ends the controller as Kubernetes does.
func (c *Controller) Stop() {
	if c.process != nil {
		c.process.stop(15 * time.Second)
	}
}

// Done is closed when the controller has ended.
func (c *Controller) Done() <-chan struct{} { return c.process.done }

// Ended explains an end that nobody asked for.
func (c *Controller) Ended() error { return c.process.ended() }

// Metrics is all that the controller measures, as text.
func (c *Controller) Metrics(ctx context.Context) (string, error) {
	content, err := fetch(ctx, c.metrics+"/metrics")
	return string(content), err
}

// MetricNames are the names of all that the controller measures.
func (c *Controller) MetricNames(ctx context.Context) ([]string, error) {
	families, err := c.families(ctx)
	return slices.Sorted(maps.Keys(families)), err
}

func (c *Controller) families(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	content, err := fetch(ctx, c.metrics+"/metrics")
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(content))
	if err != nil {
		return nil, fmt.Errorf("reading the controller's metrics, %w", err)
	}
	return families, nil
}

// Metric sums the series of a counter or gauge whose labels include the given
// ones. A metric that does not exist is an error.
func (c *Controller) Metric(ctx context.Context, name string, labels map[string]string) (float64, error) {
	families, err := c.families(ctx)
	if err != nil {
		return 0, err
	}
	family, ok := families[name]
	if !ok {
		return 0, fmt.Errorf("the controller has no metric %s", name)
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
		err = fmt.Errorf("%s answers %s: %s", url, response.Status, strings.TrimSpace(string(body)))
	}
	return body, err
}

// freePorts finds ports that nobody uses. They are all held at once, so that
// they differ.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("finding a free port, %w", err)
		}
		defer listener.Close()
		address, ok := listener.Addr().(*net.TCPAddr)
		if !ok {
			return nil, errors.New("finding a free port, a TCP listener has no TCP address")
		}
		ports = append(ports, address.Port)
	}
	return ports, nil
}
