// A producer and a consumer of RocketMQ's Go client, told what to do by their arguments. They print one JSON
// object for each thing that happened.
//
//	client send      NAME_SERVER TOPIC WAY BODY...      WAY: sync, async, oneway, batch, delayed, or a tag
//	client transact  NAME_SERVER GROUP TOPIC BODY...    a body says what becomes of it: commit, rollback, ask
//	client consume   NAME_SERVER GROUP TOPIC MODEL KIND EXPRESSION [FAILING]
//	                                     MODEL: clustering, broadcasting, orderly; KIND: tag, sql; until stdin ends
//	client pull      NAME_SERVER GROUP TOPIC COUNT
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	timeLimit   = 60 * time.Second
	fiveSeconds = 2 // delay level
)

var printing sync.Mutex

func say(what map[string]interface{}) {
	printing.Lock()
	defer printing.Unlock()
	text, err := json.Marshal(what)
	must(err)
	fmt.Println(string(text))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func untilTold() {
	bufio.NewReader(os.Stdin).ReadString(0)
}

func resolver(nameServer string) primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{nameServer})
}

func sent(result *primitive.SendResult) {
	say(map[string]interface{}{
		"sent": result.MsgID, "status": int(result.Status), "queue": result.MessageQueue.QueueId,
		"offset": result.QueueOffset,
	})
}

func send(nameServer, topic, way string, bodies []string) {
	sender, err := rocketmq.NewProducer(producer.WithNsResolver(resolver(nameServer)), producer.WithRetry(2))
	must(err)
	must(sender.Start())
	defer sender.Shutdown()
	limited, cancel := context.WithTimeout(context.Background(), timeLimit)
	defer cancel()
	messages := make([]*primitive.Message, 0, len(bodies))
	for _, body := range bodies {
		messages = append(messages, primitive.NewMessage(topic, []byte(body)).WithKeys([]string{body}))
	}
	switch way {
	case "batch":
		result, err := sender.SendSync(limited, messages...)
		must(err)
		sent(result)
	case "async":
		var under sync.WaitGroup
		under.Add(len(messages))
		for _, message := range messages {
			must(sender.SendAsync(limited, func(_ context.Context, result *primitive.SendResult, err error) {
				must(err)
				sent(result)
				under.Done()
			}, message))
		}
		under.Wait()
	case "oneway":
		for _, message := range messages {
			must(sender.SendOneWay(limited, message))
		}
		time.Sleep(time.Second) // a client that ends at once may not have written them
	default:
		for _, message := range messages {
			if way == "delayed" {
				message.WithDelayTimeLevel(fiveSeconds)
			} else if way != "sync" {
				message.WithTag(way)
			}
			result, err := sender.SendSync(limited, message)
			must(err)
			sent(result)
		}
	}
}

type decider struct{}

func (decider) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch string(message.Body) {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (decider) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	say(map[string]interface{}{"asked": string(message.Body)})
	return primitive.CommitMessageState
}

func transact(nameServer, group, topic string, bodies []string) {
	sender, err := rocketmq.NewTransactionProducer(
		decider{}, producer.WithNsResolver(resolver(nameServer)), producer.WithGroupName(group))
	must(err)
	must(sender.Start())
	for _, body := range bodies {
		result, err := sender.SendMessageInTransaction(
			context.Background(), primitive.NewMessage(topic, []byte(body)))
		must(err)
		sent(result.SendResult)
	}
	untilTold()
	must(sender.Shutdown())
}

func came(message *primitive.MessageExt) {
	say(map[string]interface{}{
		"body": string(message.Body), "tag": message.GetTags(), "keys": message.GetKeys(),
		"queue": message.Queue.QueueId, "offset": message.QueueOffset, "times": message.ReconsumeTimes,
	})
}

func consume(nameServer, group, topic, model, kind, expression, failing string) {
	options := []consumer.Option{
		consumer.WithNsResolver(resolver(nameServer)), consumer.WithGroupName(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithMaxReconsumeTimes(2),
	}
	if model == "broadcasting" {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	} else {
		options = append(options, consumer.WithConsumerModel(consumer.Clustering))
	}
	options = append(options, consumer.WithConsumerOrder(model == "orderly"))
	taker, err := rocketmq.NewPushConsumer(options...)
	must(err)
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
	if kind == "sql" {
		selector.Type = consumer.SQL92
	}
	must(taker.Subscribe(topic, selector,
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				came(message)
				if string(message.Body) == failing {
					return consumer.ConsumeRetryLater, nil
				}
			}
			return consumer.ConsumeSuccess, nil
		}))
	must(taker.Start())
	say(map[string]interface{}{"started": group})
	untilTold()
	must(taker.Shutdown())
}

func pull(nameServer, group, topic string, count int) {
	taker, err := rocketmq.NewPullConsumer(consumer.WithNsResolver(resolver(nameServer)),
		consumer.WithGroupName(group), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	must(err)
	must(taker.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}))
	must(taker.Start())
	limit := time.Now().Add(timeLimit)
	for taken := 0; taken < count && time.Now().Before(limit); {
		limited, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		result, err := taker.Poll(limited, time.Second)
		cancel()
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		must(err)
		for _, message := range result.GetMsgList() {
			came(message)
			taken++
		}
		taker.ACK(context.Background(), result, consumer.ConsumeSuccess)
	}
	must(taker.Shutdown())
}

func main() {
	rlog.SetLogLevel("error")
	rlog.SetOutputPath("/dev/null")
	words := os.Args[2:]
	switch os.Args[1] {
	case "send":
		send(words[0], words[1], words[2], words[3:])
	case "transact":
		transact(words[0], words[1], words[2], words[3:])
	case "consume":
		failing := ""
		if len(words) > 6 {
			failing = words[6]
		}
		consume(words[0], words[1], words[2], words[3], words[4], words[5], failing)
	case "pull":
		count, err := strconv.Atoi(words[3])
		must(err)
		pull(words[0], words[1], words[2], count)
	}
}
