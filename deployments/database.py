"""What several nodes share: the database of conversations and answers."""

import os
from typing import TYPE_CHECKING

from assay.answers import store_of
from assay.config import AnswersConfig, AppConfig
from assay.errors import SetupError
from assay.ports import AnswerStore

if TYPE_CHECKING:  # imports for half a second, which a laptop's replicas need not
    from assay.conversations.database import Database


def shared_database(dsn_env: str, section: str) -> "Database":
    """Raises ``SetupError`` that names the config's section and the variable: the environment has no URL, or a wrong one."""
    from assay.conversations.database import Database, postgresql

    if not (dsn := os.environ.get(dsn_env)):
        raise SetupError(f"{section}.store is 'postgresql', but the environment has no {dsn_env}.")
    try:
        return Database(postgresql(dsn))
    except SetupError as e:
        raise SetupError(f"{section}.store is 'postgresql', but see {dsn_env}: {e}", section, e.allowed) from None


def check_databases(config: AppConfig) -> None:
    """Raises ``SetupError`` as a replica would at its start, which is tried again while engines load. Connects to none."""
    answers, conversations = config.answers, config.ingress.conversations
    if answers.keep and answers.store == "postgresql":
        shared_database(answers.dsn_env, "answers")
    if conversations.store == "postgresql":
        shared_database(conversations.dsn_env, "ingress.conversations")


def answers_of(config: AnswersConfig) -> AnswerStore | None:
    """None where no answers are to be kept."""
    if not config.keep or config.store == "sqlite":
        return store_of(config)
    from assay.answers_postgresql import PostgresqlAnswers

    return PostgresqlAnswers(shared_database(config.dsn_env, "answers"), config.keep, config.days)
